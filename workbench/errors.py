"""Errors a user can meet: each message is one sentence that names the thing and what to do."""


class WorkbenchError(Exception):
    """Base of every error whose message is meant for the user, without a traceback."""


class SettingError(WorkbenchError, ValueError):
    """A setting has an unknown name or a value outside its range."""


class RequestError(WorkbenchError, ValueError):
    """One request cannot be served; the engine goes on with the others."""


class ModelError(WorkbenchError):
    """A model file or folder is missing, broken, foreign or unsupported."""


class CapacityError(WorkbenchError):
    """A budget is smaller than what has to fit into it."""


class TierError(WorkbenchError):
    """A memory tier cannot be opened or configured (running tiers count misses instead)."""


class EngineDied(WorkbenchError):
    """The engine process ended without being asked to."""


class IntegrityError(WorkbenchError):
    """An invariant of the cache (I1-I12) does not hold."""
