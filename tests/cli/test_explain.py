"""What two actions differ in, said in the words of the model."""

from documents import action, layer, symbol

from spyre_build.explain import diff_actions, diff_fragments, features, nearest


def texts(before, after, names=None):
    return [d.text for d in diff_fragments(before, after, names)]


def test_epsilon_changed_names_operator_argument_and_node():
    names = {("aten::native_layer_norm.default", 4): "eps"}
    found = texts(layer(1e-5), layer(1e-6), lambda op, i: names.get((op, i), ""))
    assert found == ["layer norm epsilon 1e-05 → 1e-06 in node 1 aten::native_layer_norm"]


def test_epsilon_changed_without_schemas_names_the_position():
    assert texts(layer(1e-5), layer(1e-6)) == ["layer norm argument 4 1e-05 → 1e-06 in node 1 aten::native_layer_norm"]


def test_node_inserted_is_one_difference_and_those_that_read_it():
    found = texts(layer(), layer(before=("aten::relu.default",)))
    assert found[0] == "node 1: aten::relu.default added"
    # The norm and the addition now read the new node's value: said once each; nothing else is renumbered noise.
    assert len(found) == 3
    assert all("%" in text for text in found[1:])


def test_node_replaced_names_both_operators():
    found = texts(layer(before=("aten::gelu.default",)), layer(before=("aten::silu.default",)))
    assert found == ["operator aten::gelu.default → aten::silu.default in node 1"]


def test_node_removed_value_reused_by_number_is_still_seen():
    before, after = layer(before=("aten::relu.default", "aten::tanh.default")), layer(before=("aten::relu.default",))
    found = texts(before, after)
    assert "node 2: aten::tanh.default gone" in found
    assert any("layer norm" in text and "(gone)" in text for text in found)


def test_dtype_changed_names_the_inputs():
    found = texts(layer(), layer(dtype="bfloat16"))
    assert "input 0 tensor float32[2, 64] → tensor bfloat16[2, 64]" in found


def test_symbol_range_changed_is_said():
    found = texts(layer(symbols=(symbol(4096),)), layer(symbols=(symbol(None),)))
    assert found == ["symbol 0 s0 in [2, 4096] → s0 in [2, ∞]"]


def test_same_fragment_gives_nothing():
    assert diff_fragments(layer(), layer()) == []


def test_toolchain_changed_names_versions_flags_and_target():
    before = action(layer())
    after = action(layer(), "cpu/x86-64-v2", torch="2.13.1", flags=("-O3", "-march=x86-64-v2"))
    found = [d.text for d in diff_actions(before, after)]
    assert "torch 2.13.0 → 2.13.1" in found
    assert "compiler flags -march=x86-64-v3 → -march=x86-64-v2" in found
    assert "target cpu/x86-64-v3 → cpu/x86-64-v2" in found
    assert "instruction set x86-64-v3 → x86-64-v2" in found


def test_option_added_is_said_against_its_default():
    found = [d.text for d in diff_actions(action(layer()), action(layer(), options=[("unroll", "4")]))]
    assert found == ["option unroll default → 4"]


def test_nearest_prefers_same_fragment_then_fewest_changes():
    wanted = layer(1e-6)
    store = {f.digest().hash: f for f in (wanted, layer(1e-5), layer(before=("aten::relu.default",) * 3))}

    def ops(key):
        return features(store[key])

    other_eps, far = action(layer(1e-5)), action(layer(before=("aten::relu.default",) * 3))
    assert nearest(action(wanted), [far, other_eps], ops) == other_eps
    other_torch = action(wanted, torch="2.13.1")
    assert nearest(action(wanted), [far, other_eps, other_torch], ops) == other_torch
    assert nearest(action(wanted), [], ops) is None


def test_nearest_does_not_offer_the_same_action_or_a_stranger():
    wanted, stranger = layer(), layer(before=("aten::relu.default",) * 40)
    store = {f.digest().hash: f for f in (wanted, stranger)}
    candidates = [action(wanted), action(stranger)]
    assert nearest(action(wanted), candidates, lambda key: features(store[key])) is None
