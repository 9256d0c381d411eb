<?php
// Holds a database connection for ?s= seconds of SELECT SLEEP; ?p=1 makes it a
// persistent one. The rig of the field cases.
require 'db.php';

try {
    $db = db(!empty($_GET['p']));
    $db->query('SELECT SLEEP(' . (float) ($_GET['s'] ?? 0) . ')');
    echo "ok\n";
} catch (mysqli_sql_exception $e) {
    http_response_code(500);
    error_log('database error ' . $e->getCode());
    echo 'database error ', $e->getCode(), "\n";
}
