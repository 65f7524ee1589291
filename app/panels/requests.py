"""One running request: stop it, or compare it with full precision."""

from app.panels.act import attempt
from app.panels.page import Page


def abort_request(page: Page, request_id: str) -> bool:
    """Stop one request; its blocks are freed."""

    def run() -> str:
        page.engine.client.abort(request_id)
        return page.texts("request.aborted", request=request_id)

    return attempt(page, run)


def set_shadow(page: Page, request_id: str | None) -> bool:
    """Compare one request with full precision, or stop comparing (None)."""

    def run() -> str | None:
        if request_id is None:
            page.engine.client.stop_shadow()
            return None
        page.engine.client.start_shadow(request_id)
        return page.texts("request.shadow_started", request=request_id)

    return attempt(page, run)
