//! What a check found.

use std::fmt;

/// One thing to fix, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root of the tree.
    pub path: String,
    /// From 1; `None`: the file as a whole.
    pub line: Option<usize>,
    /// What is wrong and how to fix it.
    pub message: String,
}

impl Finding {
    /// A finding in a line, counted from 0 as `enumerate` does.
    pub fn at(path: &str, index: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: Some(index + 1), message: message.into() }
    }

    /// A finding about a whole file.
    pub fn of(path: &str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: None, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}
