<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title><?= $title ?></title>
<link rel="stylesheet" href="/static/style.css">
<header>Orders · signed in as <?= $user ?></header>
<main>
<h1><?= $title ?></h1>
<?= $content ?>
</main>
</html>
