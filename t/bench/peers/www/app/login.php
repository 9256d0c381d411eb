<?php
// What each of the herd wants: 50 ms of database.
require __DIR__ . '/serve.php';

serve(fn (mysqli $db) => $db->query('SELECT SLEEP(0.05)'));
