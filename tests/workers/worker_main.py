"""A worker process for tests: arguments as JSON, and ways to make it another one than it would be."""

from __future__ import annotations

import json
import logging
import os
import sys
import time


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    words = json.loads(sys.argv[1])
    from spyre_workers import serve

    if (sources := words.pop("toolchain", None)) is not None:  # another version of spyre-build
        import msgspec

        real = serve.toolchain()
        serve.toolchain = lambda: msgspec.structs.replace(real, backend_sources=sources)
    if words.pop("deaf", False):
        import functools

        serve.Duties = functools.partial(serve.Duties, deaf_seconds=3.0)
        if serve.RESTARTS_VARIABLE not in os.environ:  # a consumer that hangs
            from celery.worker import WorkController

            WorkController.start = lambda _self: time.sleep(1000)
            serve._HANG_SECONDS = 2.0
    from spyre_build.working import work

    print(work(words.pop("broker"), words.pop("cache"), **words), flush=True)


if __name__ == "__main__":
    main()
