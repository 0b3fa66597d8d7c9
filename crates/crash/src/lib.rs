//! Places on the way to the disk at which a test can have the process die.
//!
//! `BANYAN_CRASH=state-committed:3` kills the process, as `kill -9` would, when it passes that place
//! for the third time. Only programs with debug assertions look; in others [`pass`] is nothing.

macro_rules! points {
    ($($(#[$meta:meta])* $point:ident = $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point {
            $($(#[$meta])* $point,)*
        }

        impl Point {
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Point::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// The log: a batch is about to be written.
    LogAppending = "log-appending",
    /// It is written, and synced if it had to be.
    LogAppended = "log-appended",
    LogSyncing = "log-syncing",
    LogSynced = "log-synced",
    /// A new log has taken the place of the old one, which is still there.
    LogReplaced = "log-replaced",
    /// Entries were cut off; the files that held them are there.
    LogCut = "log-cut",
    LogPurging = "log-purging",
    LogPurged = "log-purged",
    /// Entries are decided and about to be applied.
    Applying = "applying",
    /// They are applied, and nobody has been told.
    Applied = "applied",
    /// The state: a batch is about to be written.
    StateCommitting = "state-committing",
    StateCommitted = "state-committed",
    StatePersisting = "state-persisting",
    StatePersisted = "state-persisted",
    /// A checkpoint: memory is sealed, and not all of it is in tables.
    CheckpointSealed = "checkpoint-sealed",
    /// Records and indexes are in tables, and meta is not.
    CheckpointTables = "checkpoint-tables",
    /// A batch that changes the catalog is about to be written.
    CatalogChanging = "catalog-changing",
    CatalogChanged = "catalog-changed",
    /// Some of a new index's keys are written.
    IndexPart = "index-part",
    /// Tables of a new index's keys are in, and what has been touched meanwhile is not put right.
    IndexTables = "index-tables",
    /// Some of what was dropped is removed.
    CleanupPart = "cleanup-part",
    /// All of it is; the mark is still there.
    CleanupEnding = "cleanup-ending",
    /// An import is noted, and what it replaces is there.
    ImportBegun = "import-begun",
    ImportCleared = "import-cleared",
    /// A slice is in, and not noted.
    ImportSlice = "import-slice",
    ImportEnding = "import-ending",
    ImportEnded = "import-ended",
    /// A snapshot has come in whole, and the log does not know.
    SnapshotInstalled = "snapshot-installed",
}

/// Where the process may have to die.
#[inline(always)]
pub fn pass(_point: Point) {
    #[cfg(debug_assertions)]
    armed::pass(_point);
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    struct Armed {
        point: Point,
        passes_left: AtomicI64,
    }

    pub(super) fn parse(text: &str) -> Option<(Point, i64)> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::ALL.iter().find(|point| point.name() == name)?;
        Some((*point, count.parse().ok()?))
    }

    pub(super) fn pass(point: Point) {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let (point, count) = parse(&std::env::var("BANYAN_CRASH").ok()?)?;
            Some(Armed {
                point,
                passes_left: AtomicI64::new(count),
            })
        });
        let Some(armed) = armed.as_ref().filter(|armed| armed.point == point) else {
            return;
        };
        if armed.passes_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            let _ = raise(Signal::SIGKILL);
            // The signal ends the process wherever its threads are; this one must not go on.
            std::process::abort();
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn points_are_known_by_their_names() {
        for point in Point::ALL {
            let armed = armed::parse(&format!("{}:7", point.name()));
            assert_eq!(armed, Some((*point, 7)));
        }
        assert_eq!(armed::parse("log-appended"), Some((Point::LogAppended, 1)));
        assert_eq!(armed::parse("elsewhere:1"), None);
        assert_eq!(armed::parse("log-appended:often"), None);
    }
}
