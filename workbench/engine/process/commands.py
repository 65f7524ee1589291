"""What each command does in the engine process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.config import replace_settings
from workbench.engine.process import protocol
from workbench.engine.process.host import reload_report, restart_changes
from workbench.engine.views.tier_report import (
    damage,
    hold_block,
    journey,
    set_outage,
    tiers_report,
)
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.engine.process.server import EngineServer

Call = tuple[bytes, int]  # who asked, and the number to answer to
_LATER = object()  # answered elsewhere


class CommandHandler:
    """Answers commands; those that need the engine wait while it is loading."""

    def __init__(self, server: "EngineServer") -> None:
        self._server = server
        self._parked: list[tuple[bytes, protocol.Command]] = []
        self._actions: dict[type, Callable[[Any, Call], Any]] = {
            protocol.Submit: lambda body, _: server.host.submit(body.spec),
            protocol.Abort: lambda body, _: server.host.abort(body.request_id),
            protocol.ClearRequests: lambda body, _: server.host.clear(),
            protocol.Apply: self._apply,
            protocol.Preview: self._preview,
            protocol.Play: lambda body, _: server.set_paused(False),
            protocol.Pause: lambda body, _: server.set_paused(True),
            protocol.Step: self._step,
            protocol.SetSpeed: self._set_speed,
            protocol.GetSnapshot: lambda body, _: server.snapshot(),
            protocol.GetFrame: lambda body, _: server.frame(),
            protocol.Inspect: lambda body, _: server.host.engine.inspect(body.tier, body.cell),
            protocol.EventsSince: lambda body, _: server.host.engine.events_since(body.seq),
            protocol.StartShadow: lambda body, _: server.host.engine.start_shadow(body.request_id),
            protocol.StopShadow: lambda body, _: server.host.engine.stop_shadow(),
            protocol.Check: lambda body, _: server.host.check(),
            protocol.StartWorkload: lambda body, _: server.host.start_workload(body),
            protocol.StopWorkload: lambda body, _: server.host.stop_workload(body.name),
            protocol.GetTiers: lambda body, _: tiers_report(server.host.engine),
            protocol.Journey: lambda body, _: journey(server.host.engine, body.key),
            protocol.InjectFault: lambda body, _: damage(server.host.engine, body.kind),
            protocol.SetOutage: lambda body, _: set_outage(
                server.host.engine, body.tier, body.kind
            ),
            protocol.HoldBlock: lambda body, _: hold_block(
                server.host.engine, body.key, body.kind, body.seconds
            ),
            protocol.LoadPolicy: lambda body, _: server.host.load_policy(body.name, body.text),
            protocol.Shutdown: self._shutdown,
        }

    def handle_waiting(self) -> None:
        """Answer every command that has arrived."""
        while (received := self._server.transport.receive()) is not None:
            sender, command = received
            if self._server.loader is not None and not isinstance(
                command.body, protocol.WHILE_LOADING
            ):
                self._parked.append(received)
            else:
                self._handle(sender, command)

    def handle_parked(self) -> None:
        """Answer what waited for the engine, in order."""
        parked, self._parked = self._parked, []
        for index, (sender, command) in enumerate(parked):
            if self._server.loader is not None:  # one of them started a reload
                self._parked = parked[index:]
                return
            self._handle(sender, command)

    def _handle(self, sender: bytes, command: protocol.Command) -> None:
        transport = self._server.transport
        try:
            value = self._actions[type(command.body)](command.body, (sender, command.call_id))
        except WorkbenchError as error:
            transport.refuse(sender, command.call_id, error)
        else:
            if isinstance(command.body, protocol.SHOWN_AT_ONCE):
                self._server.show_now()  # first: the answer makes the asker busy
            if value is not _LATER:
                transport.answer(sender, command.call_id, value)
        self._server.pacer.touch()

    def _apply(self, body: protocol.Apply, call: Call) -> Any:
        server, changes = self._server, body.changes
        if restart_changes(server.host.engine.config, changes):
            server.begin_reload(call, changes)
            return _LATER
        report = server.host.engine.apply(changes)
        server.config = server.host.engine.config
        server.set_threads()
        return report

    def _preview(self, body: protocol.Preview, call: Call) -> Any:
        server, changes = self._server, body.changes
        engine = server.host.engine
        if not restart_changes(engine.config, changes):
            return engine.preview(changes)
        config = replace_settings(engine.config, changes)
        return reload_report(
            engine.config, config, engine.config_version, len(engine.requests), preview=True
        )

    def _step(self, body: protocol.Step, call: Call) -> bool:
        self._server.set_paused(True)
        return self._server.step_once()

    def _set_speed(self, body: protocol.SetSpeed, call: Call) -> None:
        server = self._server
        server.motion.set_speed(body.speed)
        if not server.paused:
            server.clock.resume()

    def _shutdown(self, body: protocol.Shutdown, call: Call) -> None:
        self._server.stopping = True
