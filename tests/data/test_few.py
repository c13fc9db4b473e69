import numpy as np
import pytest

from ziggurat.data.images import open_data


def test_fewer_images_are_as_many_of_each_class_and_always_the_same() -> None:
    whole, few = open_data("digits"), open_data("digits:200")
    assert len(few.train) == 200
    assert set(np.bincount(few.train.labels)) == {20}
    again = open_data("digits:200")
    assert [few.train.name(i) for i in range(200)] == [again.train.name(i) for i in range(200)]
    names = {whole.train.name(i): i for i in range(len(whole.train))}
    for i in (0, 77, 199):
        at = names[few.train.name(i)]
        assert whole.train.label(at) == few.train.label(i)
        assert whole.train.image(at).tobytes() == few.train.image(i).tobytes()


def test_what_is_tested_stays() -> None:
    whole, few = open_data("digits"), open_data("digits:10")
    assert len(few.test) == len(whole.test)
    assert (few.name, few.mean, few.size) == ("digits:10", whole.mean, whole.size)


def test_more_images_hold_fewer_ones() -> None:
    few, more = (open_data(f"digits:{count}").train for count in (50, 100))
    assert {few.name(i) for i in range(50)} <= {more.name(i) for i in range(100)}


@pytest.mark.parametrize("count", [0, 15, 20_000])
def test_a_count_that_cannot_be_had_is_said(count: int) -> None:
    with pytest.raises(ValueError, match=f"digits:{count} asks for .* take a multiple of 10, "):
        open_data(f"digits:{count}")
