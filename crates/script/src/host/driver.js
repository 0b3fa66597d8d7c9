// The part of a map-reduce job that runs inside V8: emitted values wait here by key, in lists
// that are reduced when they grow. Called once per job with `native`; gives back what Rust calls.
(function (native) {
  "use strict";

  const { origin, keyOf, sink, endRun, isFull, tagOf } = native;
  const DBRefPrototype = DBRef.prototype;
  const NESTING_MAX = 150;
  // A list of this length is reduced.
  const VALUES_MAX = 1024;
  // Every so many emits the heap is looked at.
  const EMITS_BETWEEN_LOOKS = 0x800;
  const VALUE_BYTES_MAX = 16793600;
  const DOCUMENT_EMIT_BYTES_MAX = 104857600;

  let map, reduce, finalize, collated;
  // By key: strings and numbers as themselves, the rest by an encoding in which equal keys are
  // equal strings.
  let strings = new Map();
  let numbers = new Map();
  let others = new Map();
  let emits = 0;
  let reduces = 0;
  // Bytes emitted for the current document.
  let documentBytes = 0;
  let copiedBytes = 0;
  let reducing = false;

  function fail(code, message) {
    const error = new Error(message);
    error.code = code;
    throw error;
  }

  class Entry {
    constructor(key, value) {
      this.key = key;
      this.values = [value];
    }
  }

  // An emitted object may change afterwards; what was emitted may not.
  function copy(value, depth) {
    if (depth > NESTING_MAX) {
      fail(17279, "Exceeded depth limit of 150 when converting js object to BSON. Do you have a cycle?");
    }
    let result;
    if (Array.isArray(value)) {
      result = [];
      for (let i = 0; i < value.length; i++) {
        result.push(copyAny(value[i], depth));
      }
      copiedBytes += 5;
    } else {
      const prototype = Object.getPrototypeOf(value);
      if (prototype === Object.prototype || prototype === null) {
        result = {};
      } else if (prototype === DBRefPrototype) {
        result = Object.create(DBRefPrototype);
      } else if (tagOf(value) !== 0 || value instanceof RegExp || ArrayBuffer.isView(value)) {
        copiedBytes += 16;
        return value;
      } else if (value instanceof Date) {
        copiedBytes += 8;
        return Number.isNaN(value.getTime()) ? value : new Date(value.getTime());
      } else if (value instanceof Number || value instanceof String || value instanceof Boolean) {
        return value.valueOf();
      } else {
        result = {};
      }
      for (const name of Object.keys(value)) {
        result[name] = copyAny(value[name], depth);
        copiedBytes += name.length;
      }
      copiedBytes += 5;
    }
    const memory = value[origin];
    if (memory !== undefined) {
      result[origin] = memory;
    }
    return result;
  }

  function copyAny(value, depth) {
    if (typeof value === "object" && value !== null) {
      copiedBytes += 2;
      return copy(value, depth + 1);
    }
    copiedBytes += typeof value === "string" ? value.length + 7 : 10;
    return value;
  }

  function charge(bytes) {
    if (bytes > VALUE_BYTES_MAX) {
      fail(
        17260,
        "Converting from JavaScript to BSON failed: Object size " + bytes +
          " exceeds limit of " + VALUE_BYTES_MAX + " bytes.",
      );
    }
    documentBytes += bytes;
    if (documentBytes > DOCUMENT_EMIT_BYTES_MAX) {
      fail(31292, "Size of emitted values exceeds the set size limit of 104857600 bytes");
    }
  }

  function ownCopy(value) {
    copiedBytes = 0;
    const copied = copy(value, 0);
    charge(copiedBytes);
    return copied;
  }

  function emit(key, value) {
    if (arguments.length !== 2) {
      fail(31220, "emit takes 2 args");
    }
    if (reducing) {
      fail(31220, "emit can be called in map only");
    }
    if (typeof value === "object" && value !== null) {
      value = ownCopy(value);
    } else if (typeof value === "string" && value.length > 1024) {
      charge(value.length);
    }
    let entry;
    // Under a collation strings that differ may be one key.
    if (typeof key === "string" && !collated) {
      entry = strings.get(key);
      if (entry === undefined) {
        strings.set(key, new Entry(key, value));
      }
    } else if (typeof key === "number") {
      entry = numbers.get(key);
      if (entry === undefined) {
        numbers.set(key, new Entry(key, value));
      }
    } else {
      entry = otherEntry(key, value);
    }
    if (entry !== undefined) {
      const values = entry.values;
      values.push(value);
      if (values.length >= VALUES_MAX) {
        entry.values = [reduceValues(entry.key, values)];
      }
    }
    emits++;
    if ((emits & (EMITS_BETWEEN_LOOKS - 1)) === 0 && isFull()) {
      flush();
    }
  }

  function otherEntry(key, value) {
    if (key === undefined) {
      key = null;
    } else if (typeof key === "object" && key !== null) {
      key = ownCopy(key);
    }
    const identity = keyOf(key);
    const entries = typeof identity === "number" ? numbers : others;
    const entry = entries.get(identity);
    if (entry === undefined) {
      entries.set(identity, new Entry(key, value));
    }
    return entry;
  }

  function reduceValues(key, values) {
    reduces++;
    reducing = true;
    const reduced = reduce(key, values);
    reducing = false;
    return typeof reduced === "object" && reduced !== null ? resultCopy(reduced) : reduced;
  }

  // A result may be an object that the function keeps and changes.
  function resultCopy(value) {
    return copy(value, 0);
  }

  // Sends everything on as one sorted run and begins anew.
  function flush() {
    for (const entries of [strings, numbers, others]) {
      for (const entry of entries.values()) {
        const { key, values } = entry;
        const value = values.length > 1 ? reduceValues(key, values) : values[0];
        sink(key, value === undefined ? null : value);
      }
    }
    strings = new Map();
    numbers = new Map();
    others = new Map();
    endRun();
  }

  // Reduces what belongs to one key, and finalizes it where this is the last word.
  function finish(key, values, last) {
    let value = values.length > 1 ? reduceValues(key, values) : values[0];
    if (last && finalize !== undefined) {
      reducing = true;
      value = finalize(key, value);
      reducing = false;
    }
    return value === undefined ? null : value;
  }

  Object.defineProperty(globalThis, "emit", { value: emit, configurable: true, writable: true });

  return {
    setFunctions(given) {
      map = given.map;
      reduce = given.reduce;
      finalize = given.finalize;
      collated = given.collated;
    },
    // Where the map function may read anything: one whole object per document.
    mapDocuments(documents) {
      for (let i = 0; i < documents.length; i++) {
        documentBytes = 0;
        map.call(documents[i]);
      }
    },
    beginDocument() {
      documentBytes = 0;
    },
    flush,
    finish,
    emits: () => emits,
    reduces: () => reduces,
  };
});
