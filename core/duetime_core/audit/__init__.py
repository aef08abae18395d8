"""The audit log: admin acts and rejections, written as log lines and kept in the metadata database.

border ─▶ Audit ─┬─▶ a line, at once
                 └─▶ Trail ─▶ waiting events ─▶ batches ─▶ metadata database ◀─ ListAuditEvents
"""
