/* A scanned write becomes the body of an append frame (the diagram stands in frame.pxd). Part of scan_impl.c. */
#ifndef TOPICSD_SCAN_ENCODE_H
#define TOPICSD_SCAN_ENCODE_H

#define ENCODE_AHEAD_BYTES 2048u
#define ENCODE_HASH_BYTES 16384u /* are hashed at a time: they are in the first caches still */

static inline uint64_t align8(uint64_t length) { return (length + 7) & ~7ull; }

static inline const struct record_span *node_of(const struct write_request *write, const struct record_span *record)
{
    return record->flags & RECORD_NODE ? record : &write->batch; /* which may have none */
}

static inline uint64_t entry_bytes(const struct record_span *record, uint64_t payload)
{
    return align8(sizeof(struct record_entry) + (record->flags & RECORD_EXT ? sizeof(struct entry_ext) : 0) + payload);
}

static inline uint8_t *put(uint8_t *at, const uint8_t *bytes, uint32_t length)
{
    memcpy(at, bytes, length);
    return at + length;
}

static inline uint8_t *put_label(uint8_t *at, const uint8_t *raw, uint32_t raw_bytes, uint32_t stored, uint32_t escaped)
{
    if (!stored) /* most records have no node, many no tag: no call for nothing */
        return at;
    if (JSON_LIKELY(!escaped))
        return put(at, raw, stored);
    text_canonical(raw, raw + raw_bytes, at);
    return at + stored;
}

static uint8_t *put_record(const struct write_request *write, const struct record_span *record, uint8_t *at)
{
    const struct record_span *from = node_of(write, record);
    const uint64_t payload = (uint64_t)record->data_bytes + record->meta_bytes + record->tag_bytes + from->node_bytes;
    const uint64_t length = entry_bytes(record, payload);
    uint8_t *const end = at + length;
    struct record_entry *const entry = (struct record_entry *)at; /* entries stand at multiples of 8 */
    uint32_t flags = record->flags & RECORD_EXT ? ENTRY_FLAG_EXT : 0;
    for (uint64_t ahead = 0; ahead < length; ahead += 64)
        __builtin_prefetch(at + ENCODE_AHEAD_BYTES + ahead, 1); /* lines that the writer had last; a prefetch faults nowhere */
    memset(end - 8, 0, 8); /* the padding; an entry is at least 16 bytes */
    flags |= record->flags & RECORD_TAG && !record->tag_bytes ? ENTRY_FLAG_EMPTY_TAG : 0;
    flags |= from->flags & RECORD_NODE && !from->node_bytes ? ENTRY_FLAG_EMPTY_NODE : 0;
    *entry = (struct record_entry){(uint32_t)length | flags, record->data_bytes, record->meta_bytes, record->tag_bytes, from->node_bytes};
    at += sizeof *entry;
    if (record->flags & RECORD_EXT) {
        struct entry_ext ext = {record->delay_ms, record->priority, 0};
        at = put(at, (const uint8_t *)&ext, sizeof ext);
    }
    at = put_label(at, write->body + from->node_at, from->node_raw_bytes, from->node_bytes, from->flags & RECORD_NODE_ESCAPED);
    at = put_label(at, write->body + record->tag_at, record->tag_raw_bytes, record->tag_bytes, record->flags & RECORD_TAG_ESCAPED);
    if (record->meta_bytes)
        at = put(at, write->body + record->meta_at, record->meta_bytes);
    put(at, write->body + record->data_at, record->data_bytes);
    return end;
}

uint64_t topicsd_encoded_bytes(const struct write_request *request, uint32_t header_key_bytes)
{
    const uint32_t key_bytes = request->key_bytes ? request->key_bytes : header_key_bytes;
    return request->records_bytes + (key_bytes ? sizeof(struct key_section) + align8(key_bytes) : 0);
}

uint64_t topicsd_encode(
    const struct write_request *request, const uint8_t *header_key, uint32_t header_key_bytes, uint8_t *destination, uint64_t *hash)
{
    const uint8_t *key = request->key_bytes ? request->key : header_key;
    const uint32_t key_bytes = request->key_bytes ? request->key_bytes : header_key_bytes;
    const uint64_t before = key_bytes ? sizeof(struct key_section) + align8(key_bytes) : 0;
    uint8_t *const records = destination + before, *at = records;
    struct hash_growing growing;
    hash_growing_begin(&growing, request->records_bytes);
    for (uint32_t i = 0; i < request->count; i++) {
        at = put_record(request, &request->records[i], at);
        if ((uint64_t)(at - records) - growing.done >= ENCODE_HASH_BYTES)
            hash_growing_add(&growing, records, (size_t)(at - records));
    }
    *hash = hash_growing_end(&growing, records);
    if (key_bytes) {
        struct key_section section = {(uint16_t)key_bytes, 0, 0, *hash};
        memset(records - 8, 0, 8);
        put(put(destination, (const uint8_t *)&section, sizeof section), key, key_bytes);
        *hash = xxh3_64(destination, before + request->records_bytes);
    }
    return before + request->records_bytes;
}

#endif
