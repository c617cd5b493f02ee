"""The tables of run.db and of rollouts.db."""

from __future__ import annotations

from dataclasses import dataclass

APPLICATION_ID = 0x48445243
""""HDRC", in the header of run.db."""
VERSION = 4
OLDEST_READ = 2
ROLLOUTS_APPLICATION_ID = 0x48445252
""""HDRR", in the header of rollouts.db."""
ROLLOUTS_VERSION = 1

KIND, TRAIN = "kind", "train"
"""Name, in the table `run`, of the command that made it; absent of `headrace train`."""
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
    -- Grows when a running attempt is given out again: only a record with this number is its own.
    issue INTEGER NOT NULL DEFAULT 0,
    -- Who is to write its record, and where that writer's journal ended when it was issued: an older record with the
    -- same key and number (of an issue that a power cut took) is not this attempt's.
    writer INTEGER NOT NULL DEFAULT 0, since_segment INTEGER NOT NULL, since_offset INTEGER NOT NULL,
    segment INTEGER, offset INTEGER, length INTEGER,
    batch INTEGER, reason TEXT,
    -- The dataset's row; the share of its episodes that passed, and the batch that was composed when it was ready.
    row INTEGER, pass_rate REAL, scored_in INTEGER,
    UNIQUE (epoch, position, attempt),
    CHECK ((state = 'trained') = (batch IS NOT NULL)),
    CHECK ((state = 'dropped') = (reason IS NOT NULL)),
    CHECK (state NOT IN ('ready', 'trained') OR segment IS NOT NULL)
);
CREATE INDEX attempts_by_state ON attempts (state);
CREATE INDEX drops_by_reason ON attempts (reason) WHERE state = 'dropped';
CREATE INDEX trained_by_batch ON attempts (batch) WHERE state = 'trained';
CREATE INDEX pass_rates ON attempts (scored_in, sequence) WHERE pass_rate IS NOT NULL;
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

ROLLOUTS_SCHEMA = f"""
PRAGMA application_id = {ROLLOUTS_APPLICATION_ID};
PRAGMA user_version = {ROLLOUTS_VERSION};

-- One row a sample. `batch`: that it was trained in, or that was composed when it failed or was dropped.
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, at REAL NOT NULL,
    epoch INTEGER NOT NULL, position INTEGER NOT NULL, attempt INTEGER NOT NULL,
    episode INTEGER NOT NULL, sample INTEGER NOT NULL,
    prompt_id TEXT NOT NULL, status TEXT NOT NULL, reason TEXT, reward REAL, advantage REAL,
    tokens INTEGER NOT NULL, staleness INTEGER,
    UNIQUE (epoch, position, attempt, episode, sample)
);
CREATE INDEX rollouts_by_batch ON rollouts (batch);
CREATE INDEX rollouts_by_prompt ON rollouts (prompt_id);
CREATE INDEX rollouts_by_status ON rollouts (status);
CREATE INDEX rollouts_by_reward ON rollouts (reward);

-- Apart from the rows, so that a scan of these is short. `turns`: JSON of [by the policy, characters of `text`].
CREATE TABLE texts (
    id INTEGER PRIMARY KEY REFERENCES rollouts ON DELETE CASCADE, turns TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE details (id INTEGER PRIMARY KEY REFERENCES rollouts ON DELETE CASCADE, data BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """One kind of database file."""

    what: str
    """As in messages."""
    application_id: int
    version: int
    schema: str
    oldest_read: int
    """The oldest format that can still be looked at, without being gone on with."""
    mend: str = "start the run again with --fresh, which erases it"
    """Of one that is damaged, where there is no copy."""
    otherwise: str = "continue the run with the headrace that made it, or start another with --fresh"
    """What to do with one of another format."""


RUN = Layout("a run", APPLICATION_ID, VERSION, SCHEMA, OLDEST_READ)
ROLLOUTS = Layout(
    "a run's rollouts",
    ROLLOUTS_APPLICATION_ID,
    ROLLOUTS_VERSION,
    ROLLOUTS_SCHEMA,
    ROLLOUTS_VERSION,
    mend="delete it: nothing is restored from it",
)
