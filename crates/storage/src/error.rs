//! What can go wrong, as types: opening a directory, and everything after that.

use std::path::PathBuf;

/// Why a data directory could not be opened. One that is missing, foreign, locked or of another
/// format is left as it was found. With `Damaged` and `Io` the opening may have got further: an
/// interrupted import may have been emptied.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("data directory {} not found", .path.display())]
    Missing { path: PathBuf },
    #[error("{} is not a directory", .path.display())]
    NotADirectory { path: PathBuf },
    #[error(
        "data directory {} holds {found:?} and no data of this server: refusing to use it",
        .path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "data directory {} is locked by another process{}; is another server running on it?",
        .path.display(),
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    Locked { path: PathBuf, pid: Option<u32> },
    #[error(
        "data directory {} has format version {found}; this server reads versions up to {supported}",
        .path.display()
    )]
    FormatVersion {
        path: PathBuf,
        found: u32,
        supported: u32,
    },
    #[error("data directory {} is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("cannot use data directory {}: {source}", .path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// Why an open store could not read or write. None of these can be retried with success: the
/// engine refuses further writes after a failed one, and damaged bytes stay damaged.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("storage engine: {}", plain(.0))]
    Engine(#[from] fjall::Error),
    #[error("damaged data in {place}: {reason}")]
    Damaged { place: String, reason: String },
    #[error("catalog: {0}")]
    Catalog(String),
    #[error("snapshot transfer: {0}")]
    Transfer(String),
}

/// What the engine says, in words for whoever has to mend it: most often the disk is full.
fn plain(error: &fjall::Error) -> String {
    if matches!(error, fjall::Error::Poisoned) {
        return "it takes no more writes since one in the background has failed; is the disk full?"
            .to_owned();
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.to_string();
        }
        cause = error.source();
    }
    error.to_string()
}

impl StorageError {
    pub(crate) fn damaged(place: impl Into<String>, reason: impl ToString) -> Self {
        StorageError::Damaged {
            place: place.into(),
            reason: reason.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_in_words() {
        let full = || std::io::Error::from_raw_os_error(28);
        let direct = StorageError::Engine(fjall::Error::Io(full()));
        assert!(
            direct.to_string().contains("No space left on device"),
            "{direct}"
        );
        assert!(!direct.to_string().contains("Error {"), "{direct}");
        let poisoned = StorageError::Engine(fjall::Error::Poisoned);
        assert!(
            poisoned.to_string().contains("is the disk full?"),
            "{poisoned}"
        );
    }
}
