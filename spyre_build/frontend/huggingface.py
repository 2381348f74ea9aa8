"""A directory with a Hugging Face `config.json` as a ModelSpec. Nothing is fetched: its weights lie in it too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spyre_build.errors import FactoryError, SpecError
from spyre_build.frontend.factory import read_config
from spyre_build.spec import Entry, ModelSpec, WeightMode

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def directory_spec(folder: Path, *, seq: int, batch: int, weights: WeightMode) -> ModelSpec:
    """Builds the architecture that `config.json` names, with the directory's safetensors when weights are stored.

    Args:
        folder: holds `config.json`, and for `store` `*.safetensors`.
        seq: tokens per sequence of the example.
        batch: sequences of the example.
        weights: `store` loads weights; the other modes leave them out.

    Raises:
        SpecError: the config names no architecture that transformers knows.
        FactoryError: transformers is missing, or `store` finds no weights.
    """
    raw = read_config(folder / "config.json")
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise FactoryError(
            "a directory with a config.json needs the package 'transformers', which is not installed here",
            hint="pip install transformers",
        ) from error
    if "auto_map" in raw:
        raise SpecError(
            f"{folder} wants its own Python files to be run (auto_map); only architectures of transformers are taken",
            hint="write a factory that imports the model's own code, and submit that",
        )
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.use_cache = False
    model_class = _model_class(transformers, raw, config)
    if weights == "store":
        if not any(folder.glob("*.safetensors")):
            raise FactoryError(
                f"{folder} holds no *.safetensors, so there are no weights to store",
                hint="--weights external builds the architecture; weights are given at load",
            )
        module = model_class.from_pretrained(folder, config=config, local_files_only=True, use_safetensors=True)
    else:
        module = model_class(config)
        dtype = getattr(config, "dtype", None)
        if dtype is not None:
            module = module.to(dtype)
    module = module.eval()
    kwargs = example_inputs(module, config, seq=seq, batch=batch)
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in folder.resolve().name.lower())
    return ModelSpec(module, {"forward": Entry((), kwargs)}, name=name)


def _model_class(transformers: Any, raw: dict[str, Any], config: Any) -> Any:
    for name in raw.get("architectures") or ():
        found = getattr(transformers, str(name), None)
        if found is not None:
            return found
    found = transformers.AutoModel._model_mapping.get(type(config), None)  # noqa: SLF001  no public look-up
    if found is None:
        raise SpecError(
            f"transformers {transformers.__version__} has no model for "
            f"{raw.get('architectures') or raw.get('model_type')}",
        )
    return found[0] if isinstance(found, (tuple, list)) else found


def example_inputs(module: torch.nn.Module, config: Any, *, seq: int, batch: int) -> dict[str, torch.Tensor]:
    """Example inputs by the model's main input name: token ids, pixels or audio features."""
    import torch

    generator = torch.Generator().manual_seed(0)
    main = str(getattr(module, "main_input_name", "input_ids"))
    dtype = getattr(config, "dtype", None) or torch.float32
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = (batch, getattr(config, "num_channels", 3), height, width)
        return {"pixel_values": torch.randn(pixels, generator=generator).to(dtype)}
    if main == "input_features":
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
        inputs = {"input_features": torch.randn(shape, generator=generator).to(dtype)}
    else:
        vocabulary = getattr(config.get_text_config(), "vocab_size", 1000)
        inputs = {"input_ids": torch.randint(0, vocabulary, (batch, seq), generator=generator)}
    if getattr(config, "is_encoder_decoder", False):
        vocabulary = config.get_text_config(decoder=True).vocab_size
        inputs["decoder_input_ids"] = torch.randint(0, vocabulary, (batch, seq), generator=generator)
    return inputs
