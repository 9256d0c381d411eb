<?php
// 2 ms of database.
require __DIR__ . "/db.php";
work(fn($db) => $db->query("SELECT SLEEP(0.002)"));
