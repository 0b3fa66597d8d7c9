//! Golden scripts: commands and what they are expected to print, as text.
//!
//! A script is blocks of lines, separated by empty lines. A block starts with comments (`#`), goes
//! on with commands, and after `---` has what they print. With `UPDATE_GOLDEN=1` in the
//! environment, scripts are rewritten with what is printed now.

use std::fmt::Write;
use std::path::Path;

/// Runs the script, giving all commands of a block to `run` at once.
pub fn check(path: impl AsRef<Path>, mut run: impl FnMut(&[&str]) -> Vec<String>) {
    let path = path.as_ref();
    let script = std::fs::read_to_string(path).unwrap();
    let mut actual = String::new();
    for block in script
        .split("\n\n")
        .map(str::trim)
        .filter(|block| !block.is_empty())
    {
        let input = block.split_once("\n---").map_or(block, |(input, _)| input);
        let commands: Vec<&str> = input
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        if !actual.is_empty() {
            actual.push('\n');
        }
        actual.push_str(input);
        actual.push('\n');
        if commands.is_empty() {
            continue;
        }
        actual.push_str("---\n");
        for line in run(&commands) {
            let _ = writeln!(actual, "{line}");
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, actual).unwrap();
    } else if let Some((number, (expected, actual))) = script
        .lines()
        .zip(actual.lines())
        .enumerate()
        .find(|(_, (e, a))| e != a)
    {
        let (path, number) = (path.display(), number + 1);
        panic!("{path}:{number}\n expected: {expected}\n   actual: {actual}");
    } else {
        assert_eq!(script.trim_end(), actual.trim_end(), "{}", path.display());
    }
}

/// The command and its argument: a first word and the rest of the line.
pub fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}
