//! The prompt: line editing, history, completion, statements over several lines.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use crate::session::{Ended, Session};

const HISTORY_LINES_MAX: usize = 1_000;

/// Reads, evaluates and prints until the input ends; the code to leave with.
pub fn run(mut session: Session) -> Result<u8> {
    let config = Config::builder()
        .max_history_size(HISTORY_LINES_MAX)?
        .auto_add_history(false)
        .completion_type(CompletionType::List)
        .completion_show_all_if_ambiguous(true);
    let mut editor: Editor<Assistant, FileHistory> = Editor::with_config(config.build())?;
    // The editor needs SIGINT at no time: while it reads a line, Ctrl-C is a key like any other.
    // SAFETY: the default action can be set at any time; nobody else handles the signal yet.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    session.end_scripts_on_ctrl_c();
    let session = Rc::new(RefCell::new(session));
    editor.set_helper(Some(Assistant {
        session: session.clone(),
    }));
    let history = history_file();
    if let Some(file) = &history {
        // The first start finds no history.
        let _ = editor.load_history(file);
    }
    let code = read_lines(&mut editor, &session);
    if let Some(file) = &history
        && let Err(error) = editor.save_history(file)
    {
        eprintln!("the history is not saved to {}: {error}", file.display());
    }
    drop(editor);
    if let Ok(session) = Rc::try_unwrap(session) {
        session.into_inner().close();
    }
    code
}

fn read_lines(
    editor: &mut Editor<Assistant, FileHistory>,
    session: &Rc<RefCell<Session>>,
) -> Result<u8> {
    loop {
        let prompt = session.borrow_mut().prompt();
        let line = match editor.readline(&prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => {
                println!("bye");
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        };
        if !line.trim().is_empty() && !may_hold_a_password(&line) {
            editor.add_history_entry(&line)?;
        }
        match line.trim().trim_end_matches(';') {
            "" => continue,
            "exit" | "quit" => {
                println!("bye");
                return Ok(0);
            }
            _ => {}
        }
        match session.borrow_mut().line(&line) {
            Ok(()) => {}
            Err(Ended::Quit(code)) => return Ok(code),
            Err(Ended::Failed(message)) => println!("{message}"),
        }
    }
}

/// Lines that set one are remembered nowhere.
fn may_hold_a_password(line: &str) -> bool {
    const WORDS: [&str; 5] = [
        "createuser",
        "updateuser",
        "userpassword",
        "pwd",
        "mongodb://",
    ];
    let line = line.to_lowercase();
    WORDS.iter().any(|word| line.contains(word))
}

fn history_file() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("HOME")?).join(".banyan_shell_history"))
}

/// What the line editor asks the session.
struct Assistant {
    session: Rc<RefCell<Session>>,
}

impl Helper for Assistant {}
impl Highlighter for Assistant {}
impl Hinter for Assistant {
    type Hint = String;
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..position];
        let is_name = |character: char| character.is_alphanumeric() || "_$.".contains(character);
        let start = before
            .rfind(|character| !is_name(character))
            .map_or(0, |at| {
                at + before[at..].chars().next().map_or(1, char::len_utf8)
            });
        let names = self.session.borrow_mut().completions(before);
        Ok((start, names.into_iter().map(candidate).collect()))
    }
}

/// A list shows the last part of a name: what stands before it is the same for all.
fn candidate(name: String) -> Pair {
    let last = name.rsplit('.').next().unwrap_or(&name);
    Pair {
        display: last.to_owned(),
        replacement: name,
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let source = context.input();
        let word = source.split_whitespace().next().unwrap_or("");
        if matches!(word, "show" | "use" | "it" | "help" | "exit") {
            return Ok(ValidationResult::Valid(None));
        }
        Ok(if self.session.borrow_mut().is_incomplete(source) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::may_hold_a_password;

    #[test]
    fn passwords_are_not_remembered() {
        for line in [
            r#"db.createUser({user: "a", pwd: "x", roles: []})"#,
            r#"db.changeUserPassword("a", "x")"#,
            r#"connect("mongodb://a:x@host/")"#,
        ] {
            assert!(may_hold_a_password(line), "{line}");
        }
        assert!(!may_hold_a_password("db.posts.find({author: 'pw'})"));
    }
}
