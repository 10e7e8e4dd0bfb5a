"""Rows of queues in a snapshot (see job_rows.pxd)."""

from libc.errno cimport ENOMEM
from libc.string cimport memset

from topicsd._native.jobs cimport JOB_DELAYED, JOB_FREE, JOB_LEASED, JOB_READY, Job, Jobs
from topicsd._native.layout cimport TOPIC_QUEUE
from topicsd._native.queue_door cimport job_row, jobs_row


cdef int pack_jobs(Packed out, Core *core, uint32_t slot, uint64_t moment, uint64_t next_token, uint64_t wall_ms, int64_t mono_ms) noexcept nogil:
    cdef const Jobs *jobs = core.privates[slot].jobs if core.privates[slot] != NULL else NULL
    cdef const Job *job
    cdef RowHead row
    cdef jobs_row head
    cdef job_row one
    cdef uint32_t number
    if jobs == NULL or core.regions.table[slot].config.type != TOPIC_QUEUE or moment == 0:
        return 0
    memset(&head, 0, sizeof(head))
    head.wall_ms, head.dead_lettered, head.next_token = wall_ms, jobs.dead_lettered, next_token
    head.count = jobs.known
    row.key, row.position, row.shard = core.regions.table[slot].topic_id, moment - 1, <uint32_t>core.regions.table[slot].shard
    row.body_bytes = <uint32_t>(sizeof(head) + head.count * sizeof(one))
    if out.put(&row, sizeof(row)) != 0 or out.put(&head, sizeof(head)) != 0:
        return -ENOMEM
    for number in range(jobs.pool_used):
        job = &jobs.pool[number]
        if job.state == JOB_FREE:
            continue
        memset(&one, 0, sizeof(one))
        one.seq, one.token, one.holder, one.left_ms = job.seq, job.token, job.holder, job.due_ms - mono_ms
        one.deliveries, one.priority = job.deliveries, job.priority
        one.state = job.state if job.state == JOB_LEASED or job.state == JOB_DELAYED else <unsigned char>JOB_READY
        if out.put(&one, sizeof(one)) != 0:
            return -ENOMEM
    return 0
