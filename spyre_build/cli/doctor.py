"""`doctor`: what this machine can build and run."""

from spyre_build.cli.options import CacheOption, JsonOption
from spyre_build.cli.output import Result


def doctor(cache: CacheOption = None, _json: JsonOption = False) -> Result:
    """Check this machine, and say what is missing for what."""
    from spyre_build import doctor as machine
    from spyre_build.cli.opening import settings_of
    from spyre_build.cli.present import doctor_lines

    data = machine.examine(settings_of(cache))
    return Result(data=data, lines=doctor_lines(data), code=0 if data["ok"] else 1)


command = doctor
