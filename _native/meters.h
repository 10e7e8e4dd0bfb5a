/* What workers count about requests, as it lies in shared memory (page of truth: meters.pxd). */
#ifndef TOPICSD_METERS_H
#define TOPICSD_METERS_H

#include <stdint.h>

#define METER_BUCKETS 24u     /* le 2^n us, n = 0..22, then the rest */
#define METER_OPERATIONS 96u  /* api/operations.py numbers them; 0: any other path */
#define METER_LIMITS 24u      /* topicsd/metrics.py names them */

struct meter_line { /* one a ring slot; that worker only, but for gauges: the arbiter clears a dead one's */
    uint64_t request_us[METER_BUCKETS], request_us_sum; /* from the end of a request's head to its answer */
    uint64_t lag_us[METER_BUCKETS], lag_us_sum;         /* how late the event loop is */
    uint64_t operations[METER_OPERATIONS][6];           /* answers by the first digit of their status */
    uint64_t limits[METER_LIMITS];                      /* 429 by what was reached */
    uint64_t ws_messages_in, ws_messages_out;
    uint64_t ws_connections; /* gauge */
    uint64_t pressure;       /* gauge: 0 to 3, the rung of the ladder that the worker stands on (api/pressure.py) */
    uint64_t behind_ms;      /* gauge: for how long the writer has had a request of this worker */
    uint64_t feed_waiting;   /* gauge: topics that wait to be delivered */
    uint64_t parked, parked_us_sum; /* writes that waited for room or for pressure to pass, and for how long */
    uint64_t reserved[2];
};

#endif
