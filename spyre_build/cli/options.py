"""Options that several commands share, each spelled once."""

from typing import Annotated

import typer

CacheOption = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="URL",
        help="Tiers of the cache, nearest first: a directory, then redis://…, s3://bucket/prefix or file:///dir.",
        show_default=False,
    ),
]
BrokerOption = Annotated[
    str | None,
    typer.Option("--broker", metavar="URL", help="A Redis whose workers compile: redis://host/0.", show_default=False),
]
BuildArgument = Annotated[str, typer.Argument(metavar="BUILD", help="A build, the beginning of its id, or `last`.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; all else goes to stderr.")]
RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="A release (name:version) or a manifest (blake3:…, or its beginning).")
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="D", help="What runs it: cpu, or eager (interprets; the oracle).")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="T",
        help="Compile for this target; may be repeated. Default: the best that this host provides.",
        show_default=False,
    ),
]
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module or Python file, which defines custom operators; may be repeated.",
        show_default=False,
    ),
]
