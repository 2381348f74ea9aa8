"""Small instances of families of transformers' models, with random weights.

`FAMILIES[name]()` gives the module in eval mode and the keyword arguments of one call.
"""

import torch

WORDS = 384
TEXT = {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
DECODER = TEXT | {"intermediate_size": 96, "num_key_value_heads": 2, "use_cache": False}
ENCODER = TEXT | {"intermediate_size": 96}
IMAGES = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": 24, "patch_size": 6,
}  # fmt: skip


def tokens():
    return {"input_ids": torch.arange(12)[None] * 29 % WORDS}


def tokens_and_mask():
    return tokens() | {"attention_mask": (torch.arange(12) >= 2).long()[None]}


def images():
    return {"pixel_values": torch.linspace(-1, 1, 3 * 24 * 24).reshape(1, 3, 24, 24).sin()}


def sound():
    return {"input_features": torch.linspace(0, 9, 8 * 48).reshape(1, 8, 48).cos()}


FAMILIES = {}


def family(name, model, config, inputs=tokens, dtype=None, **sizes):
    def make():
        import transformers

        torch.manual_seed(7)
        module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        module = module.eval().requires_grad_(False)
        return (module if dtype is None else module.to(dtype)), inputs()

    assert name not in FAMILIES
    FAMILIES[name] = make


def decoder(name, stem, inputs=tokens, dtype=None, **more):
    family(name, f"{stem}ForCausalLM", f"{stem}Config", inputs, dtype, **(DECODER | more))


decoder("llama", "Llama")
decoder("llama-padded", "Llama", tokens_and_mask)
decoder("llama-half", "Llama", dtype=torch.bfloat16)
decoder("llama-plain-attention", "Llama", attn_implementation="eager")
decoder("llama-tied", "Llama", tie_word_embeddings=True)
decoder("granite", "Granite", embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
decoder("granite-experts", "GraniteMoe", num_local_experts=4, num_experts_per_tok=2)
decoder("mistral", "Mistral", sliding_window=6)
decoder("mixtral", "Mixtral", num_local_experts=4)
decoder("qwen2", "Qwen2")
decoder("qwen3", "Qwen3", head_dim=16)
decoder("gemma", "Gemma", head_dim=16)
decoder("phi3", "Phi3", pad_token_id=0)
decoder("olmo2", "Olmo2")
decoder("starcoder2", "Starcoder2")
decoder("stablelm", "StableLm")
family("gpt2", "GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=48, n_layer=3, n_head=4, use_cache=False)
family("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", **ENCODER, use_cache=False)
family(
    "opt", "OPTForCausalLM", "OPTConfig", vocab_size=WORDS, hidden_size=48, ffn_dim=96, num_hidden_layers=3,
    num_attention_heads=4, word_embed_proj_dim=48, use_cache=False,
)  # fmt: skip
family("bert", "BertModel", "BertConfig", tokens_and_mask, **ENCODER)
family("roberta", "RobertaModel", "RobertaConfig", **ENCODER, pad_token_id=1)
family(
    "distilbert", "DistilBertModel", "DistilBertConfig", vocab_size=WORDS, dim=48, hidden_dim=96, n_layers=3, n_heads=4
)
family("electra", "ElectraModel", "ElectraConfig", **ENCODER, embedding_size=24)
family("vit", "ViTModel", "ViTConfig", images, **IMAGES)
family("clip-vision", "CLIPVisionModel", "CLIPVisionConfig", images, **IMAGES)
family(
    "resnet", "ResNetModel", "ResNetConfig", images, embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2],
    layer_type="basic",
)  # fmt: skip
family(
    "t5-encoder",
    "T5EncoderModel",
    "T5Config",
    vocab_size=WORDS,
    d_model=48,
    d_kv=12,
    d_ff=96,
    num_layers=3,
    num_heads=4,
)
family(
    "mamba2", "Mamba2ForCausalLM", "Mamba2Config", vocab_size=WORDS, hidden_size=48, num_hidden_layers=3, num_heads=6,
    head_dim=16, state_size=8, n_groups=1, chunk_size=12, expand=2, use_cache=False,
)  # fmt: skip
