def set_faults(seed: int, pause_permille: int = 0, pause_us_max: int = 0, exit_ppm: int = 0) -> bool:
    """Ask for random pauses and deaths (exit status 86) between the steps of rings in this process; seed 0 ends them.

    Returns False when the build has no fault points (TOPICSD_DEBUG=1 has them).
    """
