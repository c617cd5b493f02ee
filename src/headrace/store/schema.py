"""The tables of run.db."""

from __future__ import annotations

APPLICATION_ID = 0x48445243
""""HDRC", in SQLite's file header."""
VERSION = 2

STATUSES = ("running", "finished", "stopped", "failed")

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};

CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- Kept apart from the rows of `attempts`, so that a lost row breaks the law and shows.
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('issued', 0);

CREATE TABLE attempts (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    epoch INTEGER NOT NULL, position INTEGER NOT NULL, attempt INTEGER NOT NULL,
    prompt_id TEXT NOT NULL, start_version INTEGER NOT NULL, deadline INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'ready', 'trained', 'dropped')),
    -- The journal's end when the attempt was issued: an older record of the same key is not this attempt's.
    since_segment INTEGER NOT NULL, since_offset INTEGER NOT NULL,
    segment INTEGER, offset INTEGER, length INTEGER,
    batch INTEGER, reason TEXT,
    UNIQUE (epoch, position, attempt),
    CHECK ((state = 'trained') = (batch IS NOT NULL)),
    CHECK ((state = 'dropped') = (reason IS NOT NULL)),
    CHECK (state NOT IN ('ready', 'trained') OR segment IS NOT NULL)
);
CREATE INDEX attempts_by_state ON attempts (state);
CREATE INDEX drops_by_reason ON attempts (reason) WHERE state = 'dropped';
CREATE INDEX trained_by_batch ON attempts (batch) WHERE state = 'trained';
CREATE UNIQUE INDEX one_trained ON attempts (epoch, position) WHERE state = 'trained';

CREATE TABLE branches (branch INTEGER PRIMARY KEY, parent_branch INTEGER, parent_number INTEGER);
INSERT INTO branches VALUES (0, NULL, NULL);

CREATE TABLE versions (
    branch INTEGER NOT NULL REFERENCES branches, number INTEGER NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (branch, number)
) WITHOUT ROWID;

-- Version 0 is the initial model: a checkpoint without files.
CREATE TABLE checkpoints (
    number INTEGER PRIMARY KEY, branch INTEGER NOT NULL REFERENCES branches,
    folder TEXT, files TEXT NOT NULL, state TEXT NOT NULL
);
INSERT INTO checkpoints VALUES (0, 0, NULL, '{{}}', '{{}}');

CREATE TABLE metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
    branch INTEGER NOT NULL REFERENCES branches, number INTEGER NOT NULL, at REAL NOT NULL, record TEXT NOT NULL
);
CREATE INDEX metrics_by_kind ON metrics (kind, id);

-- The newest branch and its ancestors, each up to the version at which the next one left it.
CREATE VIEW lineage AS
WITH RECURSIVE line (branch, upto) AS (
    SELECT max(branch), 9223372036854775807 FROM branches
    UNION ALL
    SELECT b.parent_branch, b.parent_number
    FROM line JOIN branches b ON b.branch = line.branch WHERE b.parent_branch IS NOT NULL
)
SELECT branch, upto FROM line;

CREATE TABLE events (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL);
"""
