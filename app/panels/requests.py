"""One running request: stop it, or compare it with full precision."""

from app.panels.act import attempt
from app.panels.page import Page


def request_name(page: Page, request_id: str) -> str:
    """What the picture calls a request: its label, or its id."""
    known = page.snapshot.requests if page.snapshot else []
    return next((r.label for r in known if r.request_id == request_id and r.label), request_id)


def abort_request(page: Page, request_id: str) -> bool:
    """Stop one request; its blocks are freed."""

    def run() -> str:
        page.engine.client.abort(request_id)
        return page.texts("request.aborted", request=request_name(page, request_id))

    return attempt(page, run)


def set_shadow(page: Page, request_id: str | None) -> bool:
    """Compare one request with full precision, or stop comparing (None)."""

    def run() -> str | None:
        if request_id is None:
            page.engine.client.stop_shadow()
            return None
        page.engine.client.start_shadow(request_id)
        return page.texts("request.shadow_started", request=request_name(page, request_id))

    return attempt(page, run)
