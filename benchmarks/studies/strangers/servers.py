"""The servers under study, by name."""

from __future__ import annotations

import clock
import document
import repository
import shop_database
import task_list
import thinking
import workbook

SERVERS = {
    module.SERVER.name: module.SERVER
    for module in (shop_database, repository, clock, thinking, workbook, task_list, document)
}
