//! One V8 isolate with contexts that have the types of [`crate::bindings`] installed: each is a
//! [`Realm`], with global objects and prototypes of its own. One of them at a time is entered.
//!
//! An isolate belongs to the thread that made it. Two bounds hold it: another thread may call
//! [`Terminator::terminate`], and a heap that comes near its limit ends the running script.
//! Neither is a guarantee: V8 may still abort the process when memory runs out in the wrong
//! place, which is why the data node runs scripts in a process of their own.

use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use deno_core::JsRuntime;

use crate::bindings::Bindings;
use crate::error::ScriptError;
use crate::evaluate::evaluate;

/// Every job compiles the functions of `driver.js` anew, on every lane. V8's second optimizing compiler
/// takes longer for them than its code gains, even with a million documents: it leaves out what begins
/// with `driver`. The functions of users still have it. A lane has a core, so that a second thread
/// for its young objects takes one from another lane.
const FLAGS: &str = "--turbo-filter=-driver* --no-parallel-scavenge";

#[derive(Debug, Clone, Default)]
pub struct RuntimeOptions {
    /// The script ends with [`ScriptError::OutOfMemory`] when the heap comes near this size.
    pub heap_bytes_max: Option<usize>,
    /// Puts what scripts of this runtime find besides the types into a new realm.
    pub globals: Option<fn(&mut v8::HandleScope<'_>)>,
}

/// A global object with everything that can be reached from it. What scripts change in one is not
/// to be seen in another.
pub struct Realm {
    context: v8::Global<v8::Context>,
    bindings: std::rc::Rc<Bindings>,
}

/// Ends a running script from another thread.
#[derive(Clone)]
pub struct Terminator(v8::IsolateHandle);

impl Terminator {
    pub fn terminate(&self) {
        self.0.terminate_execution();
    }
}

struct HeapGuard {
    handle: v8::IsolateHandle,
    hit: AtomicBool,
}

pub struct Runtime {
    // Declared before the isolate: handles go first.
    realm: Realm,
    isolate: v8::OwnedIsolate,
    heap_guard: Option<Arc<HeapGuard>>,
    heap_bytes_max: usize,
    globals: Option<fn(&mut v8::HandleScope<'_>)>,
}

/// Starts V8 in this process. Called by [`Runtime::new`]; call it early from the main thread
/// where its cost should not fall on the first runtime.
pub fn initialize() {
    static START: Once = Once::new();
    START.call_once(|| {
        v8::V8::set_flags_from_string(FLAGS);
        // The "unprotected" platform: isolates live on threads that V8 did not start.
        let platform = v8::new_unprotected_default_platform(0, false).make_shared();
        JsRuntime::init_platform(Some(platform), false);
    });
}

impl Runtime {
    pub fn new(options: &RuntimeOptions) -> Runtime {
        initialize();
        let mut params = v8::Isolate::create_params();
        if let Some(max) = options.heap_bytes_max {
            params = params.heap_limits(0, max);
        }
        let mut isolate = v8::Isolate::new(params);
        isolate.set_capture_stack_trace_for_uncaught_exceptions(true, 16);
        let heap_guard = options.heap_bytes_max.map(|_| guard_heap(&mut isolate));
        let realm = new_realm(&mut isolate, options.globals);
        let heap_bytes_max = options.heap_bytes_max.unwrap_or(usize::MAX);
        Runtime {
            realm,
            isolate,
            heap_guard,
            heap_bytes_max,
            globals: options.globals,
        }
    }

    /// Enters a new realm, and gives back the one that was left.
    pub fn renew(&mut self) -> Realm {
        self.isolate.cancel_terminate_execution();
        if let Some(guard) = &self.heap_guard {
            guard.hit.store(false, Ordering::Relaxed);
        }
        let realm = new_realm(&mut self.isolate, self.globals);
        std::mem::replace(&mut self.realm, realm)
    }

    /// Enters `realm`, one of this runtime's, and gives back the one that was left.
    pub fn enter(&mut self, realm: Realm) -> Realm {
        self.isolate.set_slot(realm.bindings.clone());
        std::mem::replace(&mut self.realm, realm)
    }

    pub fn terminator(&self) -> Terminator {
        Terminator(self.isolate.thread_safe_handle())
    }

    pub fn isolate(&mut self) -> &mut v8::OwnedIsolate {
        &mut self.isolate
    }

    pub fn bindings(&self) -> std::rc::Rc<Bindings> {
        self.realm.bindings.clone()
    }

    /// Runs `work` inside this runtime's context.
    pub fn with_scope<R>(&mut self, work: impl FnOnce(&mut v8::HandleScope<'_>) -> R) -> R {
        let context = self.realm.context.clone();
        let scope = &mut v8::HandleScope::with_context(&mut self.isolate, context);
        work(scope)
    }

    /// Runs a script; its value is that of its last expression. `name` shows in stack traces.
    pub fn evaluate(
        &mut self,
        name: &str,
        source: &str,
    ) -> Result<v8::Global<v8::Value>, ScriptError> {
        let result = self.with_scope(|scope| {
            let value = evaluate(scope, name, source)?;
            Ok(v8::Global::new(scope, value))
        });
        result.map_err(|error| self.explain(error))
    }

    /// A termination that the heap limit caused is reported as such.
    pub fn explain(&self, error: ScriptError) -> ScriptError {
        let heap_was_full = self
            .heap_guard
            .as_ref()
            .is_some_and(|g| g.hit.load(Ordering::Relaxed));
        match error {
            ScriptError::Terminated if heap_was_full => ScriptError::OutOfMemory {
                heap_bytes_max: self.heap_bytes_max,
            },
            other => other,
        }
    }
}

fn new_realm(isolate: &mut v8::Isolate, globals: Option<fn(&mut v8::HandleScope<'_>)>) -> Realm {
    let scope = &mut v8::HandleScope::new(isolate);
    let context = v8::Context::new(scope, Default::default());
    let bindings = {
        let scope = &mut v8::ContextScope::new(scope, context);
        let bindings = Bindings::install(scope);
        if let Some(globals) = globals {
            globals(scope);
        }
        bindings
    };
    Realm {
        context: v8::Global::new(scope, context),
        bindings,
    }
}

fn guard_heap(isolate: &mut v8::Isolate) -> Arc<HeapGuard> {
    let guard = Arc::new(HeapGuard {
        handle: isolate.thread_safe_handle(),
        hit: AtomicBool::new(false),
    });
    // The callback borrows the guard for as long as the isolate lives; `Runtime` keeps it.
    let data = Arc::as_ptr(&guard) as *mut std::ffi::c_void;
    isolate.add_near_heap_limit_callback(near_heap_limit, data);
    guard
}

/// Asks the script to end and lends it the room to do so. A script that goes on all the same
/// is not given more: V8 then ends the process.
unsafe extern "C" fn near_heap_limit(
    data: *mut std::ffi::c_void,
    current_bytes: usize,
    initial_bytes: usize,
) -> usize {
    // SAFETY: `data` is the guard that `Runtime` keeps alive beside the isolate.
    let guard = unsafe { &*(data as *const HeapGuard) };
    guard.hit.store(true, Ordering::Relaxed);
    guard.handle.terminate_execution();
    let bytes_max = initial_bytes + initial_bytes / 2;
    if current_bytes < bytes_max {
        (current_bytes + (16 << 20)).min(bytes_max)
    } else {
        current_bytes
    }
}
