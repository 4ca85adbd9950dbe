import type { IPart } from '../contract';

/** Characters that are kept: the end of a longer text. */
export const KEPT = 1 << 20;
// Characters of a piece: what is drawn again when something is added.
const PIECE = 1 << 15;

/** A piece of a text; it ends with a line, unless that is longer than a piece. */
export interface IPiece {
  readonly id: number;
  readonly text: string;
  /** The look with which it begins. */
  readonly look: ILook;
}

/** The end of a text that grows. */
export class TextEnd {
  /** What is kept; a piece that has not changed is the same object as before. */
  get pieces(): readonly IPiece[] {
    return this._pieces;
  }

  /** Whether what came first is not kept. */
  get isCut(): boolean {
    return this._isCut;
  }

  /** Add something at the end. */
  append(text: string): void {
    if (text === '') {
      return;
    }
    const last = this._pieces.at(-1);
    const pieces = this._pieces.slice(0, -1);
    let { id, look } = last ?? { id: 0, look: PLAIN };
    let rest = overwritten((last?.text ?? '') + text);
    while (rest.length > PIECE) {
      // at the end of a line, where there is one
      const cut = rest.lastIndexOf('\n', PIECE - 1) + 1 || PIECE;
      const piece = { id, text: rest.slice(0, cut), look };
      pieces.push(piece);
      look = runsOf(piece.text, look).end;
      rest = rest.slice(cut);
      id += 1;
    }
    if (rest !== '') {
      pieces.push({ id, text: rest, look });
    }
    this._pieces = this.trimmed(pieces);
  }

  /** Forget all, as there is a gap before what comes. */
  clear(isCut: boolean): void {
    this._pieces = [];
    this._isCut = isCut;
  }

  /** Return it without colours. */
  toString(): string {
    return plain(this._pieces.map(its => its.text).join(''));
  }

  private trimmed(pieces: IPiece[]): IPiece[] {
    let length = pieces.reduce((sum, its) => sum + its.text.length, 0);
    const first = pieces.findIndex(its => {
      const isKept = length <= KEPT;
      length -= its.text.length;
      return isKept;
    });
    this._isCut ||= first > 0;
    return first > 0 ? pieces.slice(first) : pieces;
  }

  private _pieces: readonly IPiece[] = [];
  private _isCut = false;
}

// What follows a carriage return takes the place of its line, as on a terminal: of a progress bar the last state is
// left. At the end of the text a carriage return waits for what follows.
function overwritten(text: string): string {
  return text
    .split(/\r*\n/)
    .map(line => line.slice(line.replace(/\r+$/, '').lastIndexOf('\r') + 1))
    .join('\n');
}

/** The end of a log file, read part by part while it grows. */
export class LogTail {
  readonly text = new TextEnd();

  /** Bytes of the file. */
  get size(): number {
    return this._size;
  }

  /**
   * Read on to the end of the file.
   *
   * @param part - Returns a part of the file; `from` below zero: so many bytes before its end.
   * @returns Whether there was anything new.
   */
  async read(part: (from: number) => Promise<IPart>): Promise<boolean> {
    let isNew = false;
    for (;;) {
      const from = this.next ?? -KEPT;
      const read = await part(from);
      const missing = read.size - read.next;
      this._size = read.size;
      if (this.next !== null && (read.size < this.next || missing > KEPT)) {
        // The file was begun anew, or has grown by more than is kept: its end is all that counts.
        this.text.clear(false);
        this.next = null;
        isNew = true;
        continue;
      }
      this.take(read, this.next === null && read.size > KEPT);
      isNew ||= read.text !== '';
      if (missing <= 0 || read.text === '') {
        return isNew;
      }
    }
  }

  private take(read: IPart, isInTheMiddle: boolean): void {
    let { text } = read;
    if (isInTheMiddle) {
      this.text.clear(true);
      // half a line says little
      text = text.slice(text.indexOf('\n') + 1);
    }
    this.text.append(text);
    this.next = read.next;
  }

  // the first byte that was not read; null: nothing was
  private next: number | null = null;
  private _size = 0;
}

/** How characters are drawn. */
export interface ILook {
  /** Empty: as the rest of the page. */
  readonly colour: string;
  readonly isBold: boolean;
}

/** Characters that are drawn alike. */
export interface IRun {
  readonly text: string;
  readonly look: ILook;
}

export const PLAIN: ILook = { colour: '', isBold: false };

// What the server leaves in a log: `\x1b[1;31m`, and `\x1b[K`, which clears what a terminal has behind it.
// eslint-disable-next-line no-control-regex
const CODE = /\x1b\[(K|[\d;]*m)/;
// Black and white are those of the page: on one of its themes neither could be read.
const COLOURS = ['', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', ''];

/** Return the runs of a text that begins with a look, and the look with which what follows begins. */
export function runsOf(text: string, begin: ILook): { runs: IRun[]; end: ILook } {
  const runs: IRun[] = [];
  let look = begin;
  text.split(CODE).forEach((part, at) => {
    // texts, and codes between them
    if (at % 2 === 1) {
      look = part === 'K' ? look : after(look, part.slice(0, -1));
    } else if (part !== '') {
      runs.push({ text: part, look });
    }
  });
  return { runs, end: look };
}

/** Return a text without its colours. */
export function plain(text: string): string {
  return text
    .split(CODE)
    .filter((_, at) => at % 2 === 0)
    .join('');
}

// Backgrounds and what hides a text are left out: all of a log can be read.
function after(look: ILook, codes: string): ILook {
  let { colour, isBold } = look;
  const numbers = codes.split(';').map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at] ?? 0;
    if (number === 0) {
      ({ colour, isBold } = PLAIN);
    } else if (number === 1 || number === 22) {
      isBold = number === 1;
    } else if (number === 38 || number === 48) {
      // one of 256 colours, or of all; its numbers are no codes
      at += numbers[at + 1] === 2 ? 4 : 2;
    } else if ((number >= 30 && number <= 39) || (number >= 90 && number <= 97)) {
      colour = COLOURS[number % 10] ?? '';
    }
  }
  return { colour, isBold };
}
