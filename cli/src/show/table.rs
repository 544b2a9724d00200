//! Prints tables that fit a terminal, for the modules of this folder and the commands. It leaves
//! out columns that the caller marked as spare, then cuts long cells of left-aligned columns.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

use terminal_size::{Width, terminal_size};

use super::print_line;

/// Width of tables if standard output is not a terminal, and the smallest width.
const COLUMNS: usize = 80;
const COLUMNS_MIN: usize = 40;

/// Indent of each row.
const INDENT: &str = "  ";

/// Smallest width to which a cell is cut.
const CELL_MIN: usize = 8;

/// Whether tables are printed whole, at any width.
static IS_WIDE: AtomicBool = AtomicBool::new(false);

/// Prints all later tables whole.
pub fn print_wide() {
    IS_WIDE.store(true, Ordering::Relaxed);
}

/// Returns the width of tables: that of the variable COLUMNS, or that of the terminal.
fn table_width() -> usize {
    if IS_WIDE.load(Ordering::Relaxed) {
        return usize::MAX;
    }
    let variable = env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
    let terminal = || terminal_size().map(|(Width(columns), _)| usize::from(columns));
    variable
        .or_else(terminal)
        .unwrap_or(COLUMNS)
        .max(COLUMNS_MIN)
}

/// A table: a header and rows, each of which must have as many cells.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Whether each column is aligned right; such columns are never cut.
    right: Vec<bool>,
    /// Columns to leave out if there is no room, in this order.
    spare: Vec<usize>,
}

impl Table {
    /// Creates a table with these columns. If a title begins with `>`, its column is aligned to the
    /// right.
    pub fn new(header: &[&str]) -> Table {
        let right = header.iter().map(|title| title.starts_with('>')).collect();
        let titles = header
            .iter()
            .map(|title| title.trim_start_matches('>').to_owned())
            .collect();
        Table {
            rows: vec![titles],
            right,
            spare: Vec::new(),
        }
    }

    /// Marks the columns to leave out if there is no room, in this order. The table must have each
    /// of them.
    pub fn with_spare_columns(mut self, titles: &[&str]) -> Table {
        let place = |title: &&str| self.rows[0].iter().position(|known| known == title);
        self.spare = titles.iter().filter_map(place).collect();
        assert_eq!(self.spare.len(), titles.len(), "the table has each of them");
        self
    }

    /// Adds a row.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(
            cells.len(),
            self.right.len(),
            "a row has a cell for each column"
        );
        self.rows.push(cells);
    }

    /// Prints the table, indented.
    pub fn print(&self) {
        self.to_lines().iter().for_each(|line| print_line(line));
    }

    /// Returns the lines of the table, indented.
    pub fn to_lines(&self) -> Vec<String> {
        let lines = self.fit_lines(table_width() - INDENT.len()).into_iter();
        lines.map(|line| format!("{INDENT}{line}")).collect()
    }

    /// Returns lines of at most this width: leaves out spare columns, then cuts cells.
    fn fit_lines(&self, columns: usize) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let mut shown: Vec<(usize, usize)> = (0..self.right.len())
            .map(|column| (column, width(column)))
            .collect();
        let taken = |shown: &[(usize, usize)]| -> usize {
            let widths: usize = shown.iter().map(|(_, width)| width).sum();
            widths + 2 * shown.len().saturating_sub(1)
        };
        for column in &self.spare {
            if taken(&shown) <= columns {
                break;
            }
            shown.retain(|(shown, _)| shown != column);
        }
        while taken(&shown) > columns {
            let over = taken(&shown) - columns;
            let text = shown.iter_mut().filter(|(column, _)| !self.right[*column]);
            let widest = text.max_by_key(|(_, width)| *width);
            match widest.filter(|(_, width)| *width > CELL_MIN) {
                Some((_, width)) => *width -= over.min(*width - CELL_MIN),
                None => break,
            }
        }
        self.rows
            .iter()
            .map(|row| self.format_row(row, &shown))
            .collect()
    }

    fn format_row(&self, row: &[String], shown: &[(usize, usize)]) -> String {
        let cell = |(column, width): &(usize, usize)| {
            let (text, width) = (cut_text(&row[*column], *width), *width);
            match self.right[*column] {
                true => format!("{text:>width$}"),
                false => format!("{text:<width$}"),
            }
        };
        let cells: Vec<String> = shown.iter().map(cell).collect();
        cells.join("  ").trim_end().to_owned()
    }
}

/// Cuts a text to a width. It keeps the end of a long text, which can be the digits of an account.
fn cut_text(text: &str, width: usize) -> String {
    /// Characters of the end to keep, including the space before an account.
    const END: usize = 9;
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let end = if width >= 3 * END { END } else { 0 };
    let kept: String = text.chars().take(width.saturating_sub(end + 2)).collect();
    let end: String = text.chars().skip(count - end).collect();
    format!("{kept}..{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">price"]);
        table.add_row(["a".to_owned(), "10".to_owned()]);
        table.add_row(["longer".to_owned(), "9".to_owned()]);
        assert_eq!(
            table.fit_lines(80),
            ["name    price", "a          10", "longer      9"]
        );
    }

    #[test]
    fn a_narrow_table_leaves_out_what_can_be_spared_and_cuts_the_rest() {
        let mut table = Table::new(&["name", "kind", ">price"]).with_spare_columns(&["kind"]);
        table.add_row([
            "a long name of it".to_owned(),
            "gpu".to_owned(),
            "10".to_owned(),
        ]);
        assert_eq!(table.fit_lines(40)[1], "a long name of it  gpu      10");
        assert_eq!(table.fit_lines(24)[1], "a long name of it     10");
        assert_eq!(table.fit_lines(17)[1], "a long n..     10");
        assert!(
            table
                .fit_lines(17)
                .iter()
                .all(|line| line.chars().count() <= 17)
        );
    }
}
