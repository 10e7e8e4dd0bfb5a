/* Record batches of the Arrow columnar format, made row by row without an object a row, and handed over by the Arrow C data interface.
 *
 *   text, binary   offsets i32 x (rows + 1) | bytes            seq, ts, seq_end   i64 x rows
 *   meta (a map)   offsets i32 x (rows + 1) -> entries: keys (offsets, bytes), values (offsets, bytes)
 *   validity       one bit a row, made only where something is null
 *   topic          the same in row after row, so it is written when it changes or the batch is handed over, not with each row
 *
 * A row counts once `rows` was raised, which is the last thing that happens to it: each column writes behind offsets[rows], so what a row
 * that broke off (no memory, a page that the disk does not give back) has left is overwritten by the next one.
 * columns_export moves the buffers out; the next row allocates anew, as much as the batch before it needed. Whoever imports the batch frees it by
 * its `release`.
 */
#ifndef TOPICSD_ARROW_COLUMNS_H
#define TOPICSD_ARROW_COLUMNS_H

#include <errno.h>
#include <stdlib.h>

#include "scan_text.h"

/* ---- the C data interface, as its specification has it --------------------------------------------------------------- */

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif

/* ---- columns ----------------------------------------------------------------------------------------------------------- */

enum column_number {
    COLUMN_TOPIC, COLUMN_SEQ, COLUMN_TS, COLUMN_NODE, COLUMN_TAG, COLUMN_META, COLUMN_DATA, COLUMN_KIND, COLUMN_SEQ_END, COLUMN_ERR, COLUMN_RAW,
    COLUMNS
};

static const struct { const char *name, *format; } column_forms[COLUMNS] = {
    {"topic", "u"}, {"seq", "l"}, {"ts", "tsu:UTC"}, {"node", "u"}, {"tag", "u"}, {"meta", "+m"}, {"data", "u"},
    {"_kind", "u"}, {"seq_end", "l"}, {"_err", "u"}, {"_raw", "z"},
};

struct column_text { /* offsets[0] .. offsets[count] are set */
    int32_t *offsets;
    uint8_t *bytes;
    uint64_t rooms;  /* offsets that there is room for, less one */
    uint64_t room;   /* bytes */
    uint64_t rooms_before, room_before; /* what the batch before this one had */
};

struct column {
    int wanted;
    uint8_t *validity;
    int64_t *numbers;
    struct column_text text; /* of a map: its offsets alone */
    struct column_text keys, values;
};

struct columns {
    uint64_t rows, rows_max;
    uint64_t bytes, bytes_max; /* of text; rows that end above bytes_max end the batch */
    uint32_t count;
    uint32_t order[COLUMNS]; /* the wanted columns as they are handed over */
    struct column column[COLUMNS];
    const uint8_t *topic; /* of rows topic_from .. rows, which do not have it yet */
    uint64_t topic_bytes, topic_from;
};

static inline int columns_full(const struct columns *out) { return out->rows >= out->rows_max || out->bytes >= out->bytes_max; }

/* Without buffers, of which it remembers how large they were. */
static void text_empty(struct column_text *text)
{
    *text = (struct column_text){.rooms_before = text->rooms ? text->rooms : text->rooms_before, .room_before = text->room ? text->room : text->room_before};
}

static void text_free(struct column_text *text)
{
    free(text->offsets);
    free(text->bytes);
    text_empty(text);
}

static void columns_clear(struct columns *out)
{
    for (uint32_t number = 0; number < COLUMNS; number++) {
        struct column *column = &out->column[number];
        free(column->validity);
        free(column->numbers);
        column->validity = NULL;
        column->numbers = NULL;
        text_free(&column->text);
        text_free(&column->keys);
        text_free(&column->values);
    }
    out->rows = out->bytes = out->topic_from = 0;
}

static __attribute__((noinline)) int text_grow(struct column_text *text, uint64_t count, uint64_t more)
{
    uint64_t used, wanted;
    if (text->offsets == NULL || count >= text->rooms) {
        uint64_t rooms = text->rooms ? text->rooms * 2 : text->rooms_before ? text->rooms_before : 1024;
        int32_t *offsets;
        rooms = rooms > count ? rooms : count + 1;
        offsets = realloc(text->offsets, (rooms + 1) * sizeof(int32_t));
        if (offsets == NULL)
            return -ENOMEM;
        if (text->offsets == NULL)
            offsets[0] = 0;
        text->offsets = offsets;
        text->rooms = rooms;
    }
    used = (uint64_t)text->offsets[count];
    wanted = used + more;
    if (wanted > INT32_MAX)
        return -EOVERFLOW;
    if (wanted > text->room || text->bytes == NULL) {
        uint64_t room = text->bytes ? text->room * 2 : text->room_before;
        uint8_t *bytes;
        room = room > wanted ? room : wanted + 4096;
        room = room < INT32_MAX ? room : INT32_MAX;
        bytes = realloc(text->bytes, room);
        if (bytes == NULL)
            return -ENOMEM;
        text->bytes = bytes;
        text->room = room;
    }
    return 0;
}

/* Room for `more` bytes behind `count` values, and for one value more. 0 or -errno. */
static inline int text_room(struct column_text *text, uint64_t count, uint64_t more)
{
    if (JSON_LIKELY(count < text->rooms && text->bytes != NULL && (uint64_t)text->offsets[count] + more <= text->room))
        return 0;
    return text_grow(text, count, more);
}

/* Up to 16 bytes in two words, which overlap; of less than 4 the first one has them all. */
struct text_words { uint64_t head, tail; };

static inline struct text_words text_words(const uint8_t *from, uint64_t bytes)
{
    struct text_words words = {0, 0};
    if (bytes >= 8) {
        memcpy(&words.head, from, 8);
        memcpy(&words.tail, from + bytes - 8, 8);
    } else if (bytes >= 4) {
        memcpy(&words.head, from, 4);
        memcpy(&words.tail, from + bytes - 4, 4);
    } else if (bytes) {
        words.head = from[0] | (uint64_t)from[bytes >> 1] << 8 | (uint64_t)from[bytes - 1] << 16;
    }
    return words;
}

static inline void text_put_words(uint8_t *to, struct text_words words, uint64_t bytes)
{
    if (bytes >= 8) {
        memcpy(to, &words.head, 8);
        memcpy(to + bytes - 8, &words.tail, 8);
    } else if (bytes >= 4) {
        memcpy(to, &words.head, 4);
        memcpy(to + bytes - 4, &words.tail, 4);
    } else if (bytes) {
        to[0] = (uint8_t)words.head;
        to[bytes >> 1] = (uint8_t)(words.head >> 8);
        to[bytes - 1] = (uint8_t)(words.head >> 16);
    }
}

static inline uint64_t word_has(uint64_t word, uint8_t byte)
{
    word ^= 0x0101010101010101ull * byte;
    return (word - 0x0101010101010101ull) & ~word & 0x8080808080808080ull;
}

static inline int text_put_plain(struct column_text *text, uint64_t count, const uint8_t *from, uint64_t bytes)
{
    int failure = text_room(text, count, bytes);
    if (failure)
        return failure;
    if (bytes <= 16)
        text_put_words(text->bytes + text->offsets[count], text_words(from, bytes), bytes);
    else
        memcpy(text->bytes + text->offsets[count], from, bytes);
    text->offsets[count + 1] = text->offsets[count] + (int32_t)bytes;
    return 0;
}

static __attribute__((noinline)) int text_put_escaped(struct column_text *text, uint64_t count, const uint8_t *from, uint64_t bytes)
{
    const uint8_t *end = from + bytes;
    uint8_t *out;
    int failure = text_room(text, count, bytes);
    if (failure)
        return failure;
    out = text->bytes + text->offsets[count];
    while (from < end) {
        if (*from != '\\' || end - from < 2 || (from[1] == 'u' && end - from < 6)) {
            *out++ = *from++;
        } else {
            from++;
            uint32_t code = text_escape(&from, end);
            out += utf8_put(out, code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : code); /* a lone surrogate has no UTF-8 */
        }
    }
    text->offsets[count + 1] = (int32_t)(out - text->bytes);
    return 0;
}

/* The inside of a valid JSON string, decoded: it never becomes longer. */
static inline int text_put_json(struct column_text *text, uint64_t count, const uint8_t *from, uint64_t bytes)
{
    if (bytes <= 16) {
        const struct text_words words = text_words(from, bytes);
        int failure;
        if (JSON_UNLIKELY(word_has(words.head, '\\') | word_has(words.tail, '\\')))
            return text_put_escaped(text, count, from, bytes);
        failure = text_room(text, count, bytes);
        if (failure)
            return failure;
        text_put_words(text->bytes + text->offsets[count], words, bytes);
        text->offsets[count + 1] = text->offsets[count] + (int32_t)bytes;
        return 0;
    }
    return memchr(from, '\\', bytes) ? text_put_escaped(text, count, from, bytes) : text_put_plain(text, count, from, bytes);
}

/* ---- one row ------------------------------------------------------------------------------------------------------------- */

static __attribute__((noinline)) int column_null(struct columns *out, struct column *column)
{
    if (column->validity == NULL) {
        const uint64_t bytes = (out->rows_max + 63) / 64 * 8;
        column->validity = malloc(bytes);
        if (column->validity == NULL)
            return -ENOMEM;
        memset(column->validity, 0xFF, bytes);
    }
    column->validity[out->rows >> 3] &= (uint8_t)~(1u << (out->rows & 7));
    return 0;
}

static inline int column_validity(struct columns *out, struct column *column, int valid)
{
    if (!valid)
        return column_null(out, column);
    if (column->validity != NULL) /* a row that broke off may have been null */
        column->validity[out->rows >> 3] |= (uint8_t)(1u << (out->rows & 7));
    return 0;
}

static inline int put_number(struct columns *out, enum column_number number, int valid, int64_t value)
{
    struct column *column = &out->column[number];
    if (!column->wanted)
        return 0;
    if (column->numbers == NULL) {
        column->numbers = malloc(out->rows_max * sizeof(int64_t));
        if (column->numbers == NULL)
            return -ENOMEM;
    }
    column->numbers[out->rows] = valid ? value : 0;
    return column_validity(out, column, valid);
}

/* `from` NULL: null. */
static inline int put_text(struct columns *out, enum column_number number, const void *from, uint64_t bytes)
{
    struct column *column = &out->column[number];
    int failure;
    if (!column->wanted)
        return 0;
    failure = text_put_plain(&column->text, out->rows, from, from ? bytes : 0);
    return failure ? failure : column_validity(out, column, from != NULL);
}

/* The rows so far get the topic that they have; 0 or -ENOMEM, -EOVERFLOW. */
static int columns_topic(struct columns *out)
{
    struct column_text *text = &out->column[COLUMN_TOPIC].text;
    const uint64_t rows = out->rows - out->topic_from, bytes = out->topic_bytes;
    uint64_t done;
    int failure;
    uint8_t *to;
    if (!out->column[COLUMN_TOPIC].wanted || rows == 0)
        return 0;
    failure = text_room(text, out->topic_from, rows * bytes);
    if (!failure && out->rows > text->rooms) {
        int32_t *offsets = realloc(text->offsets, (out->rows + 1) * sizeof(int32_t));
        failure = offsets == NULL ? -ENOMEM : 0;
        if (!failure) {
            text->offsets = offsets;
            text->rooms = out->rows;
        }
    }
    if (failure)
        return failure;
    to = text->bytes + text->offsets[out->topic_from];
    memcpy(to, out->topic, bytes);
    for (done = bytes; done < rows * bytes; done *= 2)
        memcpy(to + done, to, done <= rows * bytes - done ? done : rows * bytes - done);
    for (uint64_t row = out->topic_from; row < out->rows; row++)
        text->offsets[row + 1] = text->offsets[row] + (int32_t)bytes;
    out->topic_from = out->rows;
    return 0;
}

/* The topic of the rows from here on, whose bytes stay where they are until the next one is told. */
static int put_topic(struct columns *out, const uint8_t *topic, uint64_t bytes)
{
    int failure = columns_topic(out);
    if (failure)
        return failure;
    out->topic = topic;
    out->topic_bytes = bytes;
    return 0;
}

static inline int put_json(struct columns *out, enum column_number number, const uint8_t *from, uint64_t bytes)
{
    struct column *column = &out->column[number];
    int failure;
    if (!column->wanted)
        return 0;
    failure = text_put_json(&column->text, out->rows, from, from ? bytes : 0);
    return failure ? failure : column_validity(out, column, from != NULL);
}

static inline void text_drop(struct column_text *text, uint64_t which, uint64_t count)
{
    int32_t bytes = text->offsets[which + 1] - text->offsets[which];
    memmove(text->bytes + text->offsets[which], text->bytes + text->offsets[which + 1], (size_t)(text->offsets[count] - text->offsets[which + 1]));
    for (uint64_t i = which; i < count; i++)
        text->offsets[i] = text->offsets[i + 1] - bytes;
}

static inline int text_same(const struct column_text *text, uint64_t left, uint64_t right)
{
    int32_t bytes = text->offsets[left + 1] - text->offsets[left];
    return text->offsets[right + 1] - text->offsets[right] == bytes
           && memcmp(text->bytes + text->offsets[left], text->bytes + text->offsets[right], (size_t)bytes) == 0;
}

/* A member that is named twice counts as it stands last, as every JSON reader has it; a map must not hold a key twice. */
static uint64_t meta_drop_doubles(struct column *column, uint64_t first, uint64_t count)
{
    struct column_text *keys = &column->keys;
    for (uint64_t i = first; i + 1 < count;) {
        uint64_t j = i + 1;
        while (j < count && !text_same(keys, i, j))
            j++;
        if (j == count) {
            i++;
            continue;
        }
        text_drop(keys, i, count);
        text_drop(&column->values, i, count);
        count--;
    }
    return count;
}

/* The next member of the object that `*at` stands in, 0 when there is none: the insides of two strings, or a value of another kind as it stands. */
static int meta_member(struct json_scanner *scanner, const uint8_t **at, const uint8_t *name[2], const uint8_t *value[2], int *is_text)
{
    const uint8_t *p = json_space(scanner, *at);
    int escaped;
    if (p < scanner->end && *p == ',')
        p = json_space(scanner, p + 1);
    if (p >= scanner->end || *p != '"')
        return 0;
    name[0] = p + 1;
    p = json_name(scanner, p, &name[1], &escaped);
    if (p == NULL)
        return 0;
    *is_text = *p == '"';
    value[0] = p + *is_text;
    p = json_value(scanner, p, 1);
    if (p == NULL)
        return 0;
    value[1] = p - *is_text;
    *at = p;
    return 1;
}

/* The end of the string that begins at `p`, when no escape stands in it; or NULL. */
static inline const uint8_t *meta_string(const uint8_t *p, const uint8_t *end)
{
    while (p < end && *p != '"' && *p != '\\')
        p++;
    return p < end && *p == '"' ? p : NULL;
}

/* A meta as servers store it, {"name":"value",...}: without an escape, a space or a value of another kind. How many members, -1: it is another one. */
static int64_t meta_plain(struct column *column, uint64_t first, const uint8_t *from, uint64_t bytes)
{
    const uint8_t *p = from + 1, *const end = from + bytes, *name, *value, *close;
    uint64_t count = first;
    if (bytes < 2 || *from != '{')
        return -1;
    if (*p == '}')
        return 0;
    for (;;) {
        if (p >= end || *p != '"' || (close = meta_string(name = p + 1, end)) == NULL || end - close < 4 || close[1] != ':' || close[2] != '"')
            return -1;
        value = close + 3;
        if (text_put_plain(&column->keys, count, name, (uint64_t)(close - name)) || (close = meta_string(value, end)) == NULL)
            return -1;
        if (text_put_plain(&column->values, count, value, (uint64_t)(close - value)))
            return -1;
        count++;
        if (end - close < 2 || (close[1] != ',' && close[1] != '}'))
            return -1;
        if (close[1] == '}')
            return (int64_t)(count - first);
        p = close + 2;
    }
}

/* A record's meta, an object of strings as the server has let it in. `from` NULL: null. */
static int put_meta(struct columns *out, const uint8_t *from, uint64_t bytes)
{
    struct column *column = &out->column[COLUMN_META];
    struct json_scanner scanner;
    const uint8_t *at, *name[2], *value[2];
    uint64_t first, count;
    int64_t plain;
    int failure, is_text;
    if (!column->wanted)
        return 0;
    failure = text_room(&column->text, out->rows, 0);
    if (failure)
        return failure;
    first = count = (uint64_t)column->text.offsets[out->rows];
    if (from != NULL && (plain = meta_plain(column, first, from, bytes)) >= 0) {
        count = plain < 2 ? first + (uint64_t)plain : meta_drop_doubles(column, first, first + (uint64_t)plain);
    } else if (from != NULL) {
        json_begin(&scanner, from, bytes, JSON_DEPTH_MAX, JSON_WIDEST);
        at = json_space(&scanner, from) + 1; /* behind the brace */
        while (!failure && meta_member(&scanner, &at, name, value, &is_text)) {
            failure = text_put_json(&column->keys, count, name[0], (uint64_t)(name[1] - name[0]));
            if (!failure)
                failure = (is_text ? text_put_json : text_put_plain)(&column->values, count, value[0], (uint64_t)(value[1] - value[0]));
            count++;
        }
        if (failure)
            return failure;
        count = meta_drop_doubles(column, first, count);
    }
    column->text.offsets[out->rows + 1] = (int32_t)count;
    return column_validity(out, column, from != NULL);
}

/* ---- hand over ------------------------------------------------------------------------------------------------------------ */

struct array_owned {
    const void *buffers[3];
    struct ArrowArray *children[COLUMNS];
};

static void array_release(struct ArrowArray *array)
{
    struct array_owned *owned = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (owned->children[i]->release)
            owned->children[i]->release(owned->children[i]);
        free(owned->children[i]);
    }
    for (int64_t i = 0; i < array->n_buffers; i++)
        free((void *)owned->buffers[i]);
    free(owned);
    array->release = NULL;
}

/* An array with room for its children, each an array of its own; NULL: no memory. The buffers belong to it from now on. */
static struct ArrowArray *array_new(int64_t length, int64_t n_buffers, int64_t n_children)
{
    struct ArrowArray *array = calloc(1, sizeof *array);
    struct array_owned *owned = calloc(1, sizeof *owned);
    if (array == NULL || owned == NULL) {
        free(array);
        free(owned);
        return NULL;
    }
    array->length = length;
    array->n_buffers = n_buffers;
    array->n_children = n_children;
    array->buffers = owned->buffers;
    array->children = owned->children;
    array->private_data = owned;
    array->release = array_release;
    return array;
}

static void array_free(struct ArrowArray *array)
{
    if (array != NULL && array->release)
        array->release(array);
    free(array);
}

static struct ArrowArray *array_of_text(struct column_text *text, int64_t length)
{
    struct ArrowArray *array;
    if (text_room(text, 0, 0)) /* the offsets of nothing are one zero */
        return NULL;
    array = array_new(length, 3, 0);
    if (array != NULL) {
        array->buffers[1] = text->offsets;
        array->buffers[2] = text->bytes;
        text_empty(text);
    }
    return array;
}

static struct ArrowArray *array_of_map(struct column *column, int64_t length)
{
    int64_t entries = column->text.offsets ? column->text.offsets[length] : 0;
    struct ArrowArray *map = array_new(length, 2, 0), *pairs = array_new(entries, 1, 0);
    struct ArrowArray *keys = array_of_text(&column->keys, entries), *values = array_of_text(&column->values, entries);
    if (map == NULL || pairs == NULL || keys == NULL || values == NULL || text_room(&column->text, 0, 0)) {
        array_free(map), array_free(pairs), array_free(keys), array_free(values);
        return NULL;
    }
    pairs->children[0] = keys;
    pairs->children[1] = values;
    pairs->n_children = 2;
    map->children[0] = pairs;
    map->n_children = 1;
    map->buffers[1] = column->text.offsets;
    free(column->text.bytes);
    text_empty(&column->text);
    return map;
}

static struct ArrowArray *array_of(struct columns *out, uint32_t number)
{
    struct column *column = &out->column[number];
    const int64_t rows = (int64_t)out->rows;
    struct ArrowArray *array;
    int64_t valid = 0;
    if (number == COLUMN_META) {
        array = array_of_map(column, rows);
    } else if (column_forms[number].format[0] == 'u' || column_forms[number].format[0] == 'z') {
        array = array_of_text(&column->text, rows);
    } else {
        array = array_new(rows, 2, 0);
        if (array != NULL) {
            array->buffers[1] = column->numbers;
            column->numbers = NULL;
        }
    }
    if (array == NULL)
        return NULL;
    for (int64_t row = 0; column->validity != NULL && row < rows; row += 8) {
        uint8_t bits = column->validity[row >> 3];
        valid += __builtin_popcount(rows - row < 8 ? bits & ((1u << (rows - row)) - 1) : bits);
    }
    array->null_count = column->validity != NULL ? rows - valid : 0;
    if (array->null_count) {
        array->buffers[0] = column->validity;
        column->validity = NULL;
    }
    return array;
}

/* All rows so far as one struct array; `out` is empty afterwards, also when memory lacks (NULL; the rows are lost then). */
static struct ArrowArray *columns_export(struct columns *out)
{
    struct ArrowArray *whole = columns_topic(out) ? NULL : array_new((int64_t)out->rows, 1, 0);
    for (uint32_t i = 0; whole != NULL && i < out->count; i++) {
        struct ArrowArray *child = array_of(out, out->order[i]);
        if (child == NULL) {
            array_free(whole);
            whole = NULL;
            break;
        }
        whole->children[i] = child;
        whole->n_children = i + 1;
    }
    columns_clear(out);
    return whole;
}

struct schema_owned {
    struct ArrowSchema *children[COLUMNS];
};

static void schema_release(struct ArrowSchema *schema)
{
    struct schema_owned *owned = schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (owned->children[i]->release)
            owned->children[i]->release(owned->children[i]);
        free(owned->children[i]);
    }
    free(owned);
    schema->release = NULL;
}

static struct ArrowSchema *schema_new(const char *format, const char *name, int64_t flags)
{
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    struct schema_owned *owned = calloc(1, sizeof *owned);
    if (schema == NULL || owned == NULL) {
        free(schema);
        free(owned);
        return NULL;
    }
    schema->format = format;
    schema->name = name;
    schema->flags = flags;
    schema->children = owned->children;
    schema->private_data = owned;
    schema->release = schema_release;
    return schema;
}

static int schema_add(struct ArrowSchema *parent, struct ArrowSchema *child)
{
    if (child == NULL)
        return -ENOMEM;
    parent->children[parent->n_children++] = child;
    return 0;
}

static void schema_free(struct ArrowSchema *schema)
{
    if (schema != NULL && schema->release)
        schema->release(schema);
    free(schema);
}

static struct ArrowSchema *columns_schema(const struct columns *out)
{
    struct ArrowSchema *whole = schema_new("+s", "", 0);
    for (uint32_t i = 0; whole != NULL && i < out->count; i++) {
        const uint32_t number = out->order[i];
        struct ArrowSchema *child = schema_new(column_forms[number].format, column_forms[number].name, ARROW_FLAG_NULLABLE);
        int failure = schema_add(whole, child);
        if (!failure && number == COLUMN_META) {
            struct ArrowSchema *pairs = schema_new("+s", "entries", 0);
            failure = schema_add(child, pairs);
            if (!failure)
                failure = schema_add(pairs, schema_new("u", "key", 0));
            if (!failure)
                failure = schema_add(pairs, schema_new("u", "value", ARROW_FLAG_NULLABLE));
        }
        if (failure) {
            schema_free(whole);
            return NULL;
        }
    }
    return whole;
}

#endif
