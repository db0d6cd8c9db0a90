"""Tables: CSV files and their errors, the preparation of columns, and a regression's loss and measures."""

import csv
import io
from math import isnan

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lab_support.data import check_refusal

import alrao
from alrao_lab.settings import Settings
from alrao_lab.tasks import tables
from alrao_lab.tasks.columns import ABSENT, Encoder, Encoding
from alrao_lab.tasks.tables import (
    Numbers,
    OwnClasses,
    Regression,
    Table,
    diabetes,
    fit,
    kind_of,
    read_csv,
    split,
)

CPU = torch.device("cpu")
quick = hypothesis_settings(max_examples=50, deadline=None)


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "own.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def rows(*lines, header="a,b,y", count=30):
    """A file with these lines after its header, and enough good ones behind."""
    width = header.count(",") + 1
    good = [",".join(str((i * (k + 3)) % 11) for k in range(width)) for i in range(count)]
    return "\n".join([header, *lines, *good]) + "\n"


def load(**settings):
    return Regression().load(Settings(task="regression", **settings), CPU)


# CSV files


names = st.text(st.characters(categories=["L"]), min_size=1, max_size=5).filter(
    lambda name: name.lower() not in {*ABSENT, "inf"}
)


@st.composite
def tables_of_numbers(draw):
    columns = draw(st.lists(names, min_size=2, max_size=4, unique=True))
    numbers = st.floats(-1e90, 1e90)
    row = st.tuples(*[numbers] * len(columns))
    return columns, draw(st.lists(row, min_size=tables.LEAST_ROWS, max_size=30))


@quick
@given(tables_of_numbers(), st.sampled_from(",;\t"), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_numbers_come_back_from_a_file(tmp_path_factory, table, separator, end, quoted):
    columns, values = table
    file = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    csv.writer(file, delimiter=separator, lineterminator=end, quoting=quoting).writerows([columns, *values])
    path = tmp_path_factory.mktemp("csv") / "own.csv"
    path.write_text(file.getvalue(), newline="", encoding="utf-8")
    read = read_csv(path, columns[-1])
    assert list(read.inputs) == columns[:-1]
    assert read.target.tolist() == [row[-1] for row in values]
    for i, name in enumerate(read.inputs):
        assert read.inputs[name].tolist() == [row[i] for row in values]


def test_columns_are_of_numbers_or_of_words(write):
    path = write(rows("1, n/a,red,2", '?,0.5,"NA",3', "1e3,nan,blue,4", header="a,b,c,y"))
    table = read_csv(path, "y")
    a, b, c = (table.inputs[name].tolist() for name in "abc")
    assert (a[0], a[2], b[1]) == (1, 1000, 0.5)
    assert isnan(a[1])
    assert isnan(b[0])
    assert isnan(b[2])
    assert c[:3] == ["red", "NA", "blue"]
    assert table.target[:3].tolist() == [2, 3, 4]
    assert len(table) == 33


def test_blank_lines_blank_names_and_marks_are_accepted(write):
    path = write("\ufeff\n,a,y\r\n" + "\r\n".join(f"{i},{i % 5},{i % 7}\r\n,," for i in range(30)))
    table = read_csv(path, "y")
    assert list(table.inputs) == ["column 1", "a"]
    assert len(table) == 30


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (b"", "y", "own.csv is empty"),
        (b"a,y\n1,\xe9\n", "y", "own.csv is not UTF-8 (byte 0xe9 on line 2)"),
        (b"PK\3\4\0\0", "y", "own.csv is a binary file"),
        (rows(), None, "own.csv: name the column to predict with --target; there are: a, b, y"),
        (rows(), "x", "unknown column 'x': there are: a, b, y"),
        (rows(header="age,income"), "incom", "unknown column 'incom': did you mean income?"),
        (rows(count=19), "y", "own.csv has 19 rows under its header, and at least 20 are needed"),
        ("a,b,y\n", "y", "own.csv has 0 rows"),
        (rows(header="y"), "y", "own.csv has no column to predict y from"),
        (rows("1,2", count=19), "y", "own.csv has 19 rows under its header, 1 more without y"),
        (rows("1,2,3", "", "1,2,3,4"), "y", "own.csv is not a table: expected 3 fields in line 4, saw 4"),
        ("a,b,y\n" + "1,2,3,4\n" * 30, "y", "own.csv is not a table: expected 3 fields in line 2, saw 4"),
        (rows("1,2,3", "1,2,high"), "y", "own.csv, line 3: the target y is 'high', not a number; for"),
        (rows("1,2,inf"), "y", "own.csv, line 2: y is inf, beyond 1e+100"),
        (rows("1,2,3", "-1e101,2,3"), "y", "own.csv, line 3: a is -1e+101, beyond 1e+100"),
        (rows(header="1,2,3"), "3", "own.csv, line 1: these are numbers; the first line must name"),
        (rows(header="a,y,a"), "y", "own.csv, line 1: more than one column is named a"),
        (rows('1,2,"4'), "y", "own.csv is not a table: "),
    ],
)
def test_files_that_are_refused(write, text, target, message):
    assert message in check_refusal(read_csv, write(text), target)


def test_a_column_of_too_many_words_is_left_out_and_a_typing_error_refused(write):
    few = rows(*(f"w{i % 9},1,2" for i in range(30)))
    assert read_csv(write(few), "y").inputs["a"].tolist()[:2] == ["w0", "w1"]
    many = read_csv(write(rows(*(f"w{i},1,2" for i in range(40)))), "y")
    assert list(many.inputs) == ["b"]
    assert many.notes == {"left out, different words": {"a": 51}}
    typing_error = rows(*(f"{i}.5,1,2" for i in range(30)), "1_0,1,2")
    message = check_refusal(read_csv, write(typing_error), "y")
    assert "own.csv, line 32: '1_0' in column a is not a number, as most of its fields are" in message
    only_words = rows(*(f"w{i},1" for i in range(40)), header="a,y")
    assert "only columns of many different words" in check_refusal(read_csv, write(only_words), "y")


def test_rows_without_a_target_are_left_out_and_counted(write):
    table = read_csv(write(rows("1,2,", "1,2,?")), "y")
    assert (len(table), table.notes) == (30, {"rows without y, left out": 2})


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        (["red", "blue", "7"], "classification"),
        (["0", "1", "0"], "classification"),
        ([str(i) for i in range(11)], "regression"),
        (["1", "1.5"], "regression"),
        (["", "yes", "NA", "no"], "classification"),
    ],
)
def test_classes_and_numbers_are_told_apart(write, targets, kind):
    lines = [f"{i},{targets[i % len(targets)]}" for i in range(44)]
    assert kind_of(write("\n".join(["a,y", *lines])), "y") == kind


def test_classes_of_ones_own(write):
    lines = [f"{i % 7},{['x', ''][i % 2]},{['no', 'yes', 'maybe'][i % 3]}" for i in range(60)]
    problem = OwnClasses().load(
        Settings(task="classification", data=str(write("\n".join(["a,b,y", *lines]))), target="y"), CPU
    )
    assert problem.about["labels"] == ["maybe", "no", "yes"]
    assert problem.about["missing, a word of their own"] == {"b": 30}
    assert problem.network()[-1].out_features == 3
    inputs, targets = next(problem.batches(1))
    assert inputs.shape == (32, 3)
    assert targets.dtype == torch.long


def test_a_file_that_is_not_there(tmp_path):
    assert f"there is no file {tmp_path / 'no.csv'}" in check_refusal(
        load, data=str(tmp_path / "no.csv"), target="y"
    )
    assert "is a directory" in check_refusal(load, data=str(tmp_path), target="y")


# Splits and standards


@quick
@given(st.integers(tables.LEAST_ROWS, 500))
def test_every_row_is_in_one_part(count):
    parts = split(count, Settings())
    assert sorted(torch.cat(list(parts.values())).tolist()) == list(range(count))
    assert len(parts["valid"]) == len(parts["test"]) == int(0.15 * count + 1e-9)
    assert all(torch.equal(parts[part], split(count, Settings())[part]) for part in parts)


def prepare(table, train):
    encoding, notes = fit(table, train)
    encoding = Encoding.of(encoding.state())  # as a checkpoint returns it
    return Encoder(encoding.columns)(encoding.codes(table.inputs)), encoding.target, notes


def table_of(*columns, target=None):
    inputs = pd.DataFrame({f"c{i}": column for i, column in enumerate(columns)})
    target = range(len(columns[0])) if target is None else target
    return Table("a table", inputs, pd.Series(target, dtype=float, name="y"))


@quick
@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.lists(st.integers(-50, 50), min_size=3, max_size=40).filter(lambda list_: len(set(list_[:-1])) > 1),
)
def test_training_rows_get_mean_0_and_deviation_1(shift, scale, values):
    column = [shift + scale * value for value in values]
    train = torch.arange(len(values) - 1)
    inputs, _, _ = prepare(table_of(column), train)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs[train].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs[train].std(correction=0), torch.tensor(1.0), atol=1e-4, rtol=0)
    mean = sum(column[:-1]) / len(train)
    deviation = (sum((x - mean) ** 2 for x in column[:-1]) / len(train)) ** 0.5
    assert float(inputs[-1, 0]) == pytest.approx((column[-1] - mean) / deviation, rel=1e-3, abs=1e-3)


def test_a_small_spread_around_a_large_mean():
    inputs, _, _ = prepare(table_of([1e15, 1e15 + 1, 1e15, 1e15 + 1]), torch.arange(4))
    assert inputs.flatten().tolist() == [-1, 1, -1, 1]


def test_missing_numbers_are_the_mean_and_mentioned():
    nan = float("nan")
    inputs, _, notes = prepare(table_of([1.0, nan, 3.0, nan, 5.0]), torch.arange(3))
    assert inputs.flatten().tolist() == [-1, 0, 1, 0, 3]
    assert notes == {"missing, set to the mean": {"c0": 2}}


def test_words_become_zeros_and_ones():
    inputs, _, notes = prepare(table_of(["red", "blue", "red", "green"]), torch.arange(3))
    assert inputs.tolist() == [[0, 1], [1, 0], [0, 1], [0, 0]]
    assert notes == {"classes": {"c0": 2}}


def test_constant_columns_are_left_out():
    nan = float("nan")
    table = table_of([1.0, 2.0, 3.0], [4.0, 4.0, 5.0], ["a", "a", "b"], [nan, nan, 1.0], [7.0, nan, 7.0])
    inputs, _, notes = prepare(table, torch.arange(2))
    assert inputs.shape == (3, 1)
    assert notes["left out, constant"] == ["c1", "c2", "c3", "c4"]


def test_tables_with_nothing_to_learn():
    assert check_refusal(prepare, table_of([1.0, 1.0]), torch.arange(2)).startswith(
        "a table: all columns to predict"
    )
    constant = table_of([1.0, 2.0], target=[3.0, 3.0])
    assert "y is constant on the 2 training rows" in check_refusal(prepare, constant, torch.arange(2))


# The task


def test_diabetes_needs_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ALRAO_DATA", str(tmp_path))
    problem = load()
    assert problem.about == {
        "source": "scikit-learn's diabetes",
        "target": "progression",
        "inputs": 10,
        "outputs": 1,
        "train": 310,
        "valid": 66,
        "test": 66,
    }
    assert problem.steps == 10
    part = problem.parts["train"]
    inputs, targets = part.inputs, part.targets
    torch.testing.assert_close(inputs.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.std(correction=0), torch.tensor(1.0))


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    assert "needs the package scikit-learn" in check_refusal(diabetes)


def test_a_target_without_a_file():
    assert "name the file with --data FILE" in check_refusal(load, target="y")


def test_a_file_of_ones_own(write):
    path = write(rows("1,2,red,3", "?,5,green,6", header="a,b,c,y", count=100))
    problem = load(data=str(path), target="y", batch=8, train_size=50, width=0.5)
    assert problem.about["source"] == "own.csv"
    assert problem.about["missing, set to the mean"] == {"a": 1}
    assert (problem.about["train"], problem.steps) == (50, 7)
    hidden = [layer.out_features for layer in problem.network() if isinstance(layer, torch.nn.Linear)]
    assert hidden == [32, 32, 1]
    assert load(data=str(path), target="y").identity == problem.identity
    assert load(data=str(path), target="b").identity != problem.identity
    other = write(rows("1,2,red,3", "?,5,green,7", header="a,b,c,y", count=100))
    assert load(data=str(other), target="y").identity != problem.identity


def ordered(batches):
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in batches]


@quick
@given(st.integers(0, 5), st.integers(1, 9), st.integers(0, 10))
def test_an_epoch_can_be_entered_anywhere(seed, epoch, start):
    problem = load(seed=seed)
    batches = ordered(problem.batches(epoch))
    assert ordered(problem.batches(epoch, start)) == batches[start:]
    assert len(batches) == problem.steps
    seen = sorted(row for inputs, _ in batches for row in inputs)
    assert seen == sorted(problem.parts["train"].inputs.tolist())


def test_epochs_and_seeds_have_orders_of_their_own():
    problem = load()
    assert ordered(problem.batches(1)) != ordered(problem.batches(2))
    assert ordered(problem.batches(1)) != ordered(load(seed=1).batches(1))
    assert ordered(problem.evaluation("test")) == ordered(load(seed=1).evaluation("test"))


def test_plain_networks_and_alrao_train_on_the_same_scale():
    problem = load()
    net = problem.network()
    model = alrao.Alrao(net, 1, likelihood=problem.likelihood, keep_output=True)
    inputs, targets = next(problem.batches(1))
    outputs, carry = problem.forward(model, inputs, None)
    assert carry is None
    plain = outputs.as_subclass(torch.Tensor).detach()
    # The value is that of MSELoss, and the gradient that of a Normal of variance 1.
    square, bias = (plain - targets).square().mean(), (plain - targets).mean(0)
    plain.requires_grad_(True)
    for out in (plain, outputs):
        loss = problem.loss(out, targets)
        torch.testing.assert_close(loss, square)
        loss.backward()
    torch.testing.assert_close(plain.grad.sum(0), bias)
    torch.testing.assert_close(model.head.bias.grad.flatten(), bias)


def measured(problem, model, part):
    sums = {}
    with torch.no_grad():
        for inputs, targets in problem.evaluation(part):
            outputs, _ = problem.forward(model, inputs, None)
            for name, value in problem.score(outputs, targets).items():
                sums[name] = sums.get(name, 0.0) + float(value)
    return problem.measure(sums)


@pytest.mark.parametrize("with_alrao", [False, True])
def test_measures_are_scikit_learns(with_alrao, monkeypatch):
    from sklearn.metrics import mean_squared_error, r2_score

    monkeypatch.setattr(Numbers, "at_once", 50)
    problem = load()
    model = problem.network()
    if with_alrao:
        model = alrao.Alrao(model, 4, likelihood="gaussian")
    part = problem.parts["test"]
    inputs, targets = part.inputs, part.targets
    with torch.no_grad():
        outputs = model(inputs).as_subclass(torch.Tensor)
    wanted = {"loss": mean_squared_error(targets, outputs), "r2": r2_score(targets, outputs)}
    assert measured(problem, model, "test") == pytest.approx(wanted, rel=1e-4)
    assert tuple(wanted) == problem.measures


def test_a_constant_part_has_nothing_to_explain():
    problem = load()
    assert problem.measure({"loss": 2.0, "targets": 4.0, "squares": 8.0, "count": 2}) == {
        "loss": 1.0,
        "r2": 0.0,
    }


def test_alrao_learns_diabetes():
    problem = load()
    model = alrao.Alrao(problem.network(), likelihood="gaussian")
    optimizer = alrao.SGD(model, Regression.interval)
    for epoch in range(1, 16):
        for inputs, targets in problem.batches(epoch):
            optimizer.zero_grad()
            problem.loss(model(inputs), targets).backward()
            optimizer.step()
    assert measured(problem, model.eval(), "valid")["r2"] > 0.3
