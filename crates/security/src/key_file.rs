//! Key files: the secrets by which members of a cluster know each other.
//!
//! A file holds one key, or several as a YAML sequence of strings, so that keys can be rotated
//! without a moment in which two members share none. White space within a key counts for nothing.

/// The keys of a file, the one that this process presents first.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile(Vec<String>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    #[error("security key file holds no key")]
    Empty,
    #[error("security key has a length of {0}, it must be between 6 and 1024 characters")]
    Length(usize),
    #[error("invalid char in key file: {0:?} (only those of base64 are allowed)")]
    Character(char),
}

impl KeyFile {
    /// # Errors
    /// No key, or one that is too short, too long or has a character that is none of base64.
    pub fn parse(text: &str) -> Result<KeyFile, KeyFileError> {
        let entries: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("- "))
            .collect();
        let keys = if entries.is_empty() {
            vec![key(text)?]
        } else {
            let unquoted = |entry: &&str| key(entry.trim().trim_matches(['"', '\'']));
            entries.iter().map(unquoted).collect::<Result<_, _>>()?
        };
        Ok(KeyFile(keys))
    }

    /// The key that this process proves to others.
    pub fn own(&self) -> &str {
        &self.0[0]
    }

    /// All keys that others may prove.
    pub fn accepted(&self) -> &[String] {
        &self.0
    }
}

/// Keys do not belong into a log.
impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyFile({} keys)", self.0.len())
    }
}

fn key(text: &str) -> Result<String, KeyFileError> {
    let key: String = text.chars().filter(|char| !char.is_whitespace()).collect();
    let of_base64 = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '+' | '/' | '=');
    if let Some(wrong) = key.chars().find(|char| !of_base64(char)) {
        return Err(KeyFileError::Character(wrong));
    }
    match key.len() {
        0 => Err(KeyFileError::Empty),
        6..=1024 => Ok(key),
        other => Err(KeyFileError::Length(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_or_a_sequence_of_them() {
        let one = KeyFile::parse("abc def\n ghi=\n").expect("a key");
        assert_eq!(one.accepted(), ["abcdefghi="]);
        let two = KeyFile::parse("# old and new\n- \"newnew\"\n- oldold\n").expect("keys");
        assert_eq!((two.own(), two.accepted().len()), ("newnew", 2));
        assert!(!format!("{two:?}").contains("newnew"));
        assert_eq!(KeyFile::parse(" \n"), Err(KeyFileError::Empty));
        assert_eq!(KeyFile::parse("abcde"), Err(KeyFileError::Length(5)));
        assert_eq!(
            KeyFile::parse(&"a".repeat(1025)),
            Err(KeyFileError::Length(1025))
        );
        assert_eq!(KeyFile::parse("abcdef!"), Err(KeyFileError::Character('!')));
        assert_eq!(
            KeyFile::parse("- a\n- bcdefg"),
            Err(KeyFileError::Length(1))
        );
    }
}
