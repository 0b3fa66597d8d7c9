//! The `mongo` shell: JavaScript at a prompt, against a server.
//!
//! - `options`: the command line;
//! - `encryption`, `login`: the parts of it that are about TLS, and about who one is;
//! - `connections`: the official driver, one command at a time;
//! - `interrupt`: Ctrl-C, and `ending` what it does on the servers;
//! - `preference`: read preferences, between commands and the driver;
//! - `natives`: what the shell's JavaScript asks of Rust;
//! - `session`: an isolate with the shell's own scripts (`js/`) in it, and how a line is evaluated;
//! - `prompt`: line editing, history, completion, statements over several lines.

mod connections;
mod encryption;
mod ending;
mod interrupt;
mod login;
mod natives;
mod options;
mod preference;
mod prompt;
mod session;

use std::process::ExitCode;

use options::Options;
use session::{Ended, Session};

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<u8> {
    let address = options.address();
    let interactive = options.eval.is_none() && options.files.is_empty() || options.shell;
    if !options.quiet {
        println!("Banyan shell version {}", env!("CARGO_PKG_VERSION"));
    }
    let login = options.login.clone().complete()?;
    let mut session = Session::new(options.encryption.clone(), login)?;
    if !interactive {
        session.end_scripts_on_ctrl_c();
    }
    if !options.nodb {
        if !options.quiet {
            println!("connecting to: {address}");
        }
        session.connect(&address)?;
    }
    if let Some(source) = &options.eval {
        match session.evaluate_and_print("(shell eval)", source) {
            Ok(()) => {}
            Err(Ended::Quit(code)) => return Ok(code),
            Err(Ended::Failed(message)) => {
                eprintln!("{message}");
                return Ok(1);
            }
        }
    }
    for file in &options.files {
        match session.load(file) {
            Ok(()) => {}
            Err(Ended::Quit(code)) => return Ok(code),
            Err(Ended::Failed(message)) => {
                eprintln!("{message}\nfailed to load: {}", file.display());
                return Ok(1);
            }
        }
    }
    if interactive {
        prompt::run(session)
    } else {
        Ok(0)
    }
}
