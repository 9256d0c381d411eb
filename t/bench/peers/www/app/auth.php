<?php
// 50 ms of database: what each client of the herd asks for.
require __DIR__ . "/db.php";
work(fn($db) => $db->query("SELECT SLEEP(0.05)"));
