class FileSystem:
    """The machine's files: what the log uses unless a test hands it something else."""

    def __init__(self, *args: object, **options: object) -> None: ...

class WatchedFiles(FileSystem):
    """The shipped functions with a Python hook before and after each call.

    Calls, as the hooks get them: open(path, flags, mode), close(fd), pwritev(fd, offset, bytes), pread(fd, offset, length), fdatasync(fd),
    fsync(fd), fallocate(fd, offset, length), blank(fd, offset, length), punch(fd, offset, length), rename(source, destination), unlink(path),
    mkdir(path, mode), sync_directory(path). Both hooks may be called from any thread. A hook that raises makes the call fail with EIO.
    """

    free: int  # bytes that the disk is said to have left; -1: what is so

    def before(self, kind: str, *args: object) -> int:
        """Return 0 to let the call happen, -errno to fail it; for a pwritev k > 0 writes k bytes and then fails with EIO."""
    def after(self, kind: str, result: int, *args: object) -> None:
        """Take note of what the call returned (>= 0, or -errno)."""
