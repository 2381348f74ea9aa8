"""Results as lines for people; the same facts as the JSON, in fewer words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spyre_build.cli.output import count, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spyre_build.builds import BuildRecord
    from spyre_build.misses import Explanation

SHORT = len("blake3:") + 12


def _short(digest: str) -> str:
    return digest[:SHORT]


def build_lines(data: Mapping[str, Any]) -> list[str]:
    """What `submit` made."""
    actions, seconds = data["actions"], data["seconds"]
    rows = [(e["name"], e["calls"], e["unique"]) for e in data["entries"]]
    lines = [*table(("ENTRY", "CALLS", "UNIQUE"), rows), ""] if rows else []
    if actions:
        lines.append(
            f"{count(actions['total'], 'action')}: {actions['hit']} hit, {actions['compiled']} compiled, "
            f"{actions['waited']} waited, {actions['failed']} failed; "
            f"{count(actions['deduplicated'], 'call shares', 'calls share')} another's fragment"
        )
    if seconds:
        parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "total" and value >= 0.05)
        lines.append(f"{seconds['total']:.1f} s ({parts})" if parts else f"{seconds['total']:.1f} s")
    for failure in data["failures"]:
        lines.append(f"failed {_short(failure['fragment'])} for {failure['target']}: {failure['error']}")
        lines += [f"    {node}" for node in failure["nodes"]]
    lines.append(f"{data['status']}: build {data['build']}")
    if data.get("error"):
        lines.append(f"  {data['error']}")
    if data["status"] == "running":
        lines.append(f"`spyre-build watch {data['build']}` follows it")
    if data["manifest"]:
        lines.append(f"{data['name']} is {data['manifest']}")
    return lines


def builds_lines(builds: Sequence[Mapping[str, Any]], unreadable: Sequence[str] = ()) -> list[str]:
    """The list of `status`."""
    left_out = f"note: {count(len(unreadable), 'build')} cannot be read: {', '.join(unreadable[:5])}"
    notes = [left_out + (", …" if len(unreadable) > 5 else "")] if unreadable else []
    rows = [
        (b["build"], _when(b["started"]), b["status"], b["name"], _short(b["manifest"] or "-"), len(b["actions"]))
        for b in builds
    ]
    if not rows:
        return notes or ["no builds yet"]
    return table(("BUILD", "STARTED", "STATUS", "NAME", "MANIFEST", "ACTIONS"), rows) + notes


def build_record_lines(build: Mapping[str, Any]) -> list[str]:
    """One build of `status`."""
    lines = [f"{build['build']}  {build['status']}  {_when(build['started'])}", f"spec      {build['spec']}"]
    lines += [f"{name:<8}  {build[name]}" for name in ("manifest", "error") if build[name]]
    rows = [
        (a["outcome"], _short(a["fragment"]), a["target"], a["action"][:12], a["error"] or "") for a in build["actions"]
    ]
    return [*lines, *table(("OUTCOME", "FRAGMENT", "TARGET", "ACTION", "ERROR"), rows)] if rows else lines


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def log_lines(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Logs, one after the other, each under its name."""
    if not logs:
        return ["no logs: this build compiled nothing, or its logs were collected"]
    lines = []
    for entry in logs:
        lines.append(f"== {_short(entry['fragment'])} for {entry['target']}: {entry['outcome']}")
        lines += entry["log"].splitlines() or ["(empty)"]
    return lines


def explanation_lines(build: BuildRecord, found: Sequence[Explanation]) -> list[str]:
    """One paragraph a fragment."""
    hits = sum(e.action.outcome == "hit" for e in found)
    lines = [f"build {build.id}: {hits} of {count(len(found), 'fragment')} in the cache"]
    for e in found:
        name = f"{_short(str(e.action.fragment))} for {e.action.target}"
        if e.action.outcome == "hit":
            lines.append(f"hit   {name}")
        elif not e.near:
            lines.append(f"miss  {name}: nothing in the cache is like it")
        else:
            lines.append(f"miss  {name}: nearest is action {e.near[:12]}, which differs in")
            lines += [f"        {difference.text}" for difference in e.differences]
        if e.action.error:
            lines.append(f"        {e.action.outcome}: {e.action.error}")
    return lines


def inspection_lines(data: Mapping[str, Any]) -> list[str]:
    """Entries, fragments and weights as three tables."""
    lines = [
        f"{data['manifest']}",
        f"torch {data['torch']}, targets {', '.join(data['targets']) or 'none'}, partition {data['partition']}",
        "",
    ]
    entries = [
        (
            e["name"],
            _bucket(e["bucket"]),
            e["calls"],
            e["unique"],
            ", ".join(f"{a['label']} {a['spec']}" for a in e["arguments"]),
        )
        for e in data["entries"]
    ]
    lines += [*table(("ENTRY", "BUCKET", "CALLS", "UNIQUE", "ARGUMENTS"), entries), ""]
    fragments = []
    for f in data["fragments"]:
        artifacts = " ".join(f"{a['target']} {size(a['bytes'])}" for a in f["artifacts"])
        nodes = "?" if f["nodes"] is None else f["nodes"]
        fragments.append((_short(f["fragment"]), f["calls"], nodes, size(f["bytes"]), artifacts or "none"))
    lines += [*table(("FRAGMENT", "CALLS", "NODES", "GRAPH", "ARTIFACTS"), fragments), ""]
    weights = data["weights"]
    lines.append(
        f"{count(weights['count'], 'weight')}, {size(weights['bytes'])}, {weights['stored']} of them in the cache "
        f"(mode {data['weight_mode']})"
    )
    return lines


def _arguments(arguments: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(f"{a['label']} {a['spec']}" for a in arguments)


def _bucket(bucket: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in bucket.items()) or "-"


def run_lines(data: Mapping[str, Any]) -> list[str]:
    """What came out."""
    lines = [f"note: {note}" for note in data["notes"]]
    rows = [(o["path"], o["dtype"], "x".join(map(str, o["shape"])) or "-", o["values"]) for o in data["outputs"]]
    lines += table(("RESULT", "DTYPE", "SHAPE", "VALUES"), rows) if rows else []
    lines += [f"{path} = {value!r}" for path, value in data["plain"].items()]
    if data["written"]:
        lines.append(f"written to {data['written']}")
    return lines


def verification_lines(data: Mapping[str, Any]) -> list[str]:
    """One line a check, then the findings."""
    lines = [f"{check['status']:<8} {check['name']}: {check['text']}" for check in data["checks"]]
    lines += [f"  {finding}" for finding in data["findings"]]
    return [*lines, f"{data['manifest']} is {'sound' if data['ok'] else 'NOT sound'}"]


def replay_lines(data: Mapping[str, Any]) -> list[str]:
    """The log of a repeated compilation and what came of it."""
    lines = list(data["log"].splitlines())
    lines.append(f"{data['status']}: {_short(data['fragment'])} for {data['target']} in {data['seconds']:.1f} s")
    if data["failure"]:
        lines.append(f"{data['failure']['kind']}: {data['failure']['message']}")
    return lines


def doctor_lines(data: Mapping[str, Any]) -> list[str]:
    """One line a check; the targets as a table."""
    lines = table(("", "WHAT", "FOUND"), [(c["status"], c["name"], c["text"]) for c in data["checks"]])
    rows = [
        (t["target"], "yes" if t["run"] else t["run_lacks"], "yes" if t["build"] else t["build_lacks"])
        for t in data["targets"]
    ]
    return [*lines, "", *table(("TARGET", "RUNS", "BUILDS"), rows)]


def stats_lines(data: Mapping[str, Any]) -> list[str]:
    """Counts of a cache."""
    counts = {name: value for name, value in data.items() if name != "tiers"}
    width = max(map(len, counts))
    lines = [
        f"{name.replace('_', ' ').ljust(width)}  {size(value) if name.endswith('bytes') else value}"
        for name, value in counts.items()
    ]
    beyond = [tier for tier in data.get("tiers", ()) if tier["kind"] != "disk"]
    return lines + [
        f"{'tier'.ljust(width)}  {tier['name']}, {'durable' if tier['durable'] else 'hot'}, "
        + (f"{tier['state']}: {tier['error']}" if tier["error"] else tier["state"])
        for tier in beyond
    ]


def listing_lines(data: Mapping[str, Any]) -> list[str]:
    """Manifests of a cache, one a line."""
    rows = [
        (
            ", ".join(m["releases"]) or "-",
            _short(m["manifest"]),
            " ".join(m["targets"]) or "-",
            ", ".join(m["entries"]),
            "pinned" if m["pinned"] else "",
        )
        for m in data["manifests"]
    ]
    return table(("RELEASE", "MANIFEST", "TARGETS", "ENTRIES", ""), rows) if rows else ["no models yet"]


def findings_lines(data: Mapping[str, Any]) -> list[str]:
    """What `cache verify` found."""
    lines = [
        f"{f['kind']:<8} {f['path']}: {f['text']}{' (repaired)' if f['repaired'] else ''}" for f in data["findings"]
    ]
    return [*lines, f"{data['path']} is {'sound' if data['ok'] else 'NOT sound'}"]


def collection_lines(data: Mapping[str, Any]) -> list[str]:
    """What `cache gc` removed."""
    verb = "would remove" if data["dry_run"] else "removed"
    gone = f"{verb} {count(data['blobs'], 'blob')} and {count(data['actions'], 'result')}, {size(data['blob_bytes'])}"
    kept = count(data["kept_blobs"], "blob")
    if "kept_bytes" in data:
        kept += f", {size(data['kept_bytes'])}"
    if data.get("evicted_bytes"):
        gone += (
            f", and {size(data['evicted_bytes'])} of {count(data['evicted'], 'blob')} that the budget has no room for"
        )
    elif data.get("evicted"):
        gone += f", of which {count(data['evicted'], 'result')} for the budget alone"
    return [f"{data['tier']}: {gone}; kept {kept}"]
