<?php
// A calculation: waits ?ms= for an external system and keeps its connection
// meanwhile, though nobody uses it.
require __DIR__ . '/serve.php';

serve(function (mysqli $db): void {
    $db->query('SELECT 1');
    usleep((int) (1000 * $_GET['ms']));
});
