//! The flags for logging in, and what they make of the driver's options.

use std::io::{self, BufRead, IsTerminal, Write};
use std::mem::MaybeUninit;

use anyhow::{Context, Result, bail};
use clap::Args;
use mongodb::options::{AuthMechanism, ClientOptions, Credential};

/// They hold for every connection of the shell whose address names no user.
#[derive(Args, Clone, Debug, Default)]
pub struct Login {
    /// Logs in as this user
    #[arg(long, short = 'u', value_name = "USER")]
    username: Option<String>,
    /// Its password; asked for where it is missing
    #[arg(long, short = 'p', value_name = "PASSWORD", num_args = 0..=1, default_missing_value = "")]
    password: Option<String>,
    /// The database that the user is defined in [default: admin]
    #[arg(
        long = "authenticationDatabase",
        alias = "authSource",
        value_name = "DATABASE"
    )]
    database: Option<String>,
    /// SCRAM-SHA-256, SCRAM-SHA-1 or MONGODB-X509 [default: what user and server have]
    #[arg(long = "authenticationMechanism", value_name = "MECHANISM")]
    mechanism: Option<String>,
}

impl Login {
    /// Asks for the password that is needed and was not given.
    pub fn complete(mut self) -> Result<Self> {
        let missing = self.password.as_deref().is_none_or(str::is_empty);
        if self.username.is_some()
            && missing
            && self.mechanism()? != Some(AuthMechanism::MongoDbX509)
        {
            self.password = Some(ask_password()?);
        }
        Ok(self)
    }

    fn mechanism(&self) -> Result<Option<AuthMechanism>> {
        Ok(match self.mechanism.as_deref() {
            None => None,
            Some("SCRAM-SHA-256") => Some(AuthMechanism::ScramSha256),
            Some("SCRAM-SHA-1") => Some(AuthMechanism::ScramSha1),
            Some("MONGODB-X509") => Some(AuthMechanism::MongoDbX509),
            Some(other) => bail!("--authenticationMechanism {other} is not known"),
        })
    }

    pub fn apply(&self, options: &mut ClientOptions) -> Result<()> {
        let mechanism = self.mechanism()?;
        let by_certificate = mechanism == Some(AuthMechanism::MongoDbX509);
        if options.credential.is_some() || (self.username.is_none() && !by_certificate) {
            return Ok(());
        }
        let mut credential = Credential::default();
        credential.username = self.username.clone();
        credential.source = self.database.clone();
        if !by_certificate {
            credential.password = self.password.clone();
            let admin = || "admin".to_owned();
            credential.source.get_or_insert_with(admin);
        }
        credential.mechanism = mechanism;
        options.credential = Some(credential);
        Ok(())
    }
}

/// A line that is not shown as it is typed.
pub fn ask_password() -> Result<String> {
    let hidden = io::stdin().is_terminal().then(Unseen::begin);
    eprint!("Enter password: ");
    io::stderr().flush()?;
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    drop(hidden);
    eprintln!();
    read.context("the password cannot be read")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The terminal shows nothing of what is typed until this ends.
struct Unseen(Option<libc::termios>);

impl Unseen {
    fn begin() -> Unseen {
        let mut before = MaybeUninit::uninit();
        // SAFETY: it is written where it points to, whole, if it answers 0.
        let known = unsafe { libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) } == 0;
        // SAFETY: it was written.
        let before = known.then(|| unsafe { before.assume_init() });
        if let Some(mut silent) = before {
            silent.c_lflag &= !libc::ECHO;
            set(&silent);
        }
        Unseen(before)
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            set(before);
        }
    }
}

fn set(state: &libc::termios) {
    // SAFETY: the state is whole, and read only. A terminal that refuses it stays as it is.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, state) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        login: Login,
    }

    fn applied(words: &[&str], address: &str) -> Result<Option<Credential>> {
        let login = Words::try_parse_from([&["mongo"], words].concat())?.login;
        let runtime = tokio::runtime::Runtime::new()?;
        let mut options = runtime.block_on(async { ClientOptions::parse(address).await })?;
        login.complete()?.apply(&mut options)?;
        Ok(options.credential)
    }

    #[test]
    fn flags_name_a_user_where_the_address_does_not() {
        let plain = "mongodb://a/";
        assert_eq!(applied(&[], plain).unwrap(), None);
        let words = ["-u", "ann", "-p", "secret"];
        let ann = applied(&words, plain).unwrap().unwrap();
        assert_eq!(ann.username.as_deref(), Some("ann"));
        assert_eq!(ann.password.as_deref(), Some("secret"));
        assert_eq!(ann.source.as_deref(), Some("admin"));
        let named = "mongodb://bob:other@a/";
        let bob = applied(&words, named).unwrap().unwrap();
        assert_eq!(bob.username.as_deref(), Some("bob"));
        let there = [&words[..], &["--authenticationDatabase", "shop"]].concat();
        let ann = applied(&there, plain).unwrap().unwrap();
        assert_eq!(ann.source.as_deref(), Some("shop"));
        let words = ["--authenticationMechanism", "MONGODB-X509"];
        let certificate = applied(&words, plain).unwrap().unwrap();
        assert_eq!(certificate.mechanism, Some(AuthMechanism::MongoDbX509));
        assert_eq!(certificate.username, None);
        assert!(applied(&["--authenticationMechanism", "PLAIN"], plain).is_err());
    }
}
