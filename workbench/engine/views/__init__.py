"""What viewers see: cells, frames, the inspector, the ledger; copied out, never handed out."""
