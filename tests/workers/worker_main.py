"""A worker process for tests: arguments as JSON; what the shell does around `work` is no matter here."""

from __future__ import annotations

import json
import logging
import sys


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    words = json.loads(sys.argv[1])
    more = words.pop("toolchain", None)
    if more is not None:  # another version of spyre-build
        import msgspec

        from spyre_workers import toolchain

        real = toolchain.toolchain()
        import spyre_workers.serve

        spyre_workers.serve.toolchain = lambda: msgspec.structs.replace(real, backend_sources=more)
    from spyre_build.working import work

    print(work(words.pop("broker"), words.pop("cache"), **words), flush=True)


if __name__ == "__main__":
    main()
