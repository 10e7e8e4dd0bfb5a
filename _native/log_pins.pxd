# What holds old log files without being sealed: notes of held-up routers, and copies in ephemeral topics, which are never sealed.
#
#   note of a held-up router    forgotten: what it had to say is read from the source's index and segments; what the source has evicted since is
#                               a `source_trim` for the router's destination, as it is for what the notes had no room for (NOTES_BYTES_MAX)
#   copy in an ephemeral topic  its record moves to ephemeral memory, as the copy's readers see it
#
# Only below a position of a shard, and only in topics whose last row points there (changes.lows): what is young stays as it is.
#
# Owner: the writer. A moved copy's entry changes under the slot's lock: whoever has read the old place reads again.
