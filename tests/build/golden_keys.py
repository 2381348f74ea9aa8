"""Prints the keys of the golden fragments; `--write` keeps them, `--backwards` makes them in the other order.

Run it with `--write` only when fragments are meant to change: every cache is then useless.
"""

import json
import sys
from pathlib import Path

from factories import golden_specs, keys

KEPT = Path(__file__).parent / "golden_keys.json"


def main(words):
    specs = list(golden_specs().items())
    found = dict(sorted((name, keys(spec)) for name, spec in (specs[::-1] if "--backwards" in words else specs)))
    text = json.dumps(found, indent=1) + "\n"
    if "--write" in words:
        KEPT.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
