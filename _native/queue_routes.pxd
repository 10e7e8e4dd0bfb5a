# Claim, ack, nack and extend as hot routes (hot_routes.pxd has the rules).
#
#   scan (queue_scan.h) -> ring -> a Call waits in the queue -> answer_work: its `told` is the completion's payload, its `raw` names the seqs
#
# Falcon's: a queue with a claim window (who waits for a cohort may leave it), claims with wait_ms, answers that may be worth compressing.
# Owner: the loop's thread. The hub has one QueueRequest, for whoever is served or answered now.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.answers cimport Answers
from topicsd._native.http cimport Head
from topicsd._native.hub cimport Call

cdef int serve_work(Answers line, uint32_t route, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                    int64_t key) except -1
cdef answer_work(Answers line, Call *call)
