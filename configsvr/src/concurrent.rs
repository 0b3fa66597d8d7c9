//! Questions to many shards at once.

use banyan_node::commands::table::BoxFuture;

/// Runs futures side by side and returns what they return, in order.
pub(crate) async fn join_all<'a, T: Send + 'a>(
    futures: impl IntoIterator<Item = BoxFuture<'a, T>>,
) -> Vec<T> {
    futures::future::join_all(futures).await
}
