import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.driver import Driver
from app.origin import is_own_page


def test_the_first_tab_drives_and_a_reload_keeps_driving():
    driver, told = Driver(), []
    driver.on_change(lambda: told.append((driver.num_viewers, driver.driver)))
    assert driver.may_drive("a")  # nobody drives yet
    driver.connected("a")
    driver.connected("b")
    assert told == [(1, "a"), (2, "a")]
    assert driver.is_driver("a") and not driver.is_driver("b")
    assert not driver.claim("b")
    driver.disconnected("a")
    driver.connected("a")
    assert driver.claim("a") and driver.driver == "a"


def test_when_the_driver_closes_the_first_change_elsewhere_takes_over():
    driver = Driver()
    for tab in ("a", "b", "c"):
        driver.connected(tab)
    driver.disconnected("a")
    assert driver.may_drive("b") and driver.may_drive("c")
    assert driver.claim("b")
    assert not driver.may_drive("c")
    driver.connected("a")
    assert not driver.claim("a")
    driver.take_over("a")
    assert driver.may_drive("a") and not driver.may_drive("b")


def test_a_tab_with_two_sockets_is_one_viewer():
    driver = Driver()
    driver.connected("a")
    driver.connected("a")
    driver.connected("b")
    assert driver.num_viewers == 2
    driver.disconnected("a")
    assert not driver.may_drive("b")


@given(st.lists(st.tuples(st.sampled_from(["on", "off", "claim", "take"]),
                          st.sampled_from("abc")), max_size=40))  # fmt: skip
def test_never_two_connected_tabs_may_drive(actions):
    driver, sockets = Driver(), {"a": 0, "b": 0, "c": 0}
    for action, tab in actions:
        if action == "on":
            driver.connected(tab)
            sockets[tab] += 1
        elif action == "off" and sockets[tab]:
            driver.disconnected(tab)
            sockets[tab] -= 1
        elif action == "claim":
            driver.claim(tab)
        elif action == "take":
            driver.take_over(tab)
        if driver.driver and sockets[driver.driver]:
            assert [t for t in sockets if driver.may_drive(t)] == [driver.driver]
        assert driver.num_viewers == sum(count > 0 for count in sockets.values())


LOCAL = ["localhost", "127.0.0.1"]


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "own"),
    [
        ("http://localhost:8501", "localhost:8501", LOCAL, True),
        ("http://LOCALHOST:8501", "localhost:8501", LOCAL, True),
        (None, "localhost:8501", LOCAL, True),
        ("http://localhost:8502", "localhost:8501", LOCAL, False),
        ("http://127.0.0.1:8501", "localhost:8501", LOCAL, False),
        ("http://evil.example", "localhost:8501", LOCAL, False),
        ("null", "localhost:8501", LOCAL, False),
        ("http://evil.example:8501", "evil.example:8501", LOCAL, False),  # DNS rebinding
        ("http://evil.example:8501", "evil.example:8501", [], False),
        ("http://10.0.0.7:8501", "10.0.0.7:8501", [], True),
        ("http://[::1]:8501", "[::1]:8501", [], True),
        ("http://a.lab.example", "a.lab.example", ["*.lab.example"], True),
        ("http://lab.example", "lab.example", ["*.lab.example"], False),
        ("http://any.example", "any.example", ["*"], True),
        ("http://localhost:8501", None, LOCAL, False),
        ("http://[", "[", LOCAL, False),
    ],
)
def test_only_pages_of_this_server_may_open_the_socket(origin, host, allowed, own):
    assert is_own_page(origin, host, allowed) is own
