//! Who leads, as the members themselves say: asked again and again, and never two in one term.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::doc;
use bson::oid::ObjectId;
use mongodb::Client;
use tokio::task::JoinSet;

const PERIOD: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Seen {
    /// Who led in which election.
    leaders: HashMap<ObjectId, usize>,
    /// The newest election, and when its leader last said that it leads.
    newest: Option<(ObjectId, usize, Instant)>,
    problems: Vec<String>,
}

/// Looks for as long as it lives.
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    _looking: JoinSet<()>,
}

impl Watch {
    pub fn new(members: &[Client]) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut looking = JoinSet::new();
        for (member, client) in members.iter().enumerate() {
            looking.spawn(look(member, client.clone(), seen.clone()));
        }
        Self {
            seen,
            _looking: looking,
        }
    }

    /// The member that leads, if it has said so lately.
    pub fn leader(&self) -> Option<usize> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, leader, when) = seen.newest?;
        (when.elapsed() < Duration::from_secs(1)).then_some(leader)
    }

    pub fn elections(&self) -> usize {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .leaders
            .len()
    }

    pub fn problems(&self) -> Vec<String> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .problems
            .clone()
    }
}

async fn look(member: usize, client: Client, seen: Arc<Mutex<Seen>>) {
    let admin = client.database("admin");
    loop {
        tokio::time::sleep(PERIOD).await;
        let hello = admin.run_command(doc! { "hello": 1 }).into_future();
        let Ok(Ok(hello)) = tokio::time::timeout(TIMEOUT, hello).await else {
            continue;
        };
        let leads = hello.get_bool("isWritablePrimary").unwrap_or(false);
        let Some(election) = hello.get_object_id("electionId").ok().filter(|_| leads) else {
            continue;
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let leader = *seen.leaders.entry(election).or_insert(member);
        if leader != member {
            let problem = format!("members {leader} and {member} both lead in election {election}");
            if !seen.problems.contains(&problem) {
                seen.problems.push(problem);
            }
        }
        if seen
            .newest
            .is_none_or(|(newest, ..)| newest.bytes() <= election.bytes())
        {
            seen.newest = Some((election, member, Instant::now()));
        }
    }
}
