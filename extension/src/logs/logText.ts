import type { ILogPart } from '../contract';

/** Characters that are kept: the end of a longer text. */
export const MAX_CHARACTERS = 1 << 20;
// Characters of a piece: what is drawn again when something is added.
const CHUNK_LENGTH = 1 << 15;

/** A piece of a text; it ends with a line, unless that is longer than a piece. */
export interface IChunk {
  readonly id: number;
  readonly text: string;
  /** The style with which it begins. */
  readonly style: ITextStyle;
}

/** The end of a text that grows. */
export class TextBuffer {
  /** What is kept; a piece that has not changed is the same object as before. */
  get chunks(): readonly IChunk[] {
    return this._chunks;
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
    const last = this._chunks.at(-1);
    const chunks = this._chunks.slice(0, -1);
    let { id, style } = last ?? { id: 0, style: PLAIN_STYLE };
    let rest = applyCarriageReturns((last?.text ?? '') + text);
    while (rest.length > CHUNK_LENGTH) {
      // at the end of a line, where there is one
      const cut = rest.lastIndexOf('\n', CHUNK_LENGTH - 1) + 1 || CHUNK_LENGTH;
      const chunk = { id, text: rest.slice(0, cut), style };
      chunks.push(chunk);
      style = parseRuns(chunk.text, style).end;
      rest = rest.slice(cut);
      id += 1;
    }
    if (rest !== '') {
      chunks.push({ id, text: rest, style });
    }
    this._chunks = this.trim(chunks);
  }

  /** Forget all, as there is a gap before what comes. */
  clear(isCut: boolean): void {
    this._chunks = [];
    this._isCut = isCut;
  }

  /** Return it without colors. */
  toString(): string {
    return stripStyles(this._chunks.map(chunk => chunk.text).join(''));
  }

  private trim(chunks: IChunk[]): IChunk[] {
    let length = chunks.reduce((sum, chunk) => sum + chunk.text.length, 0);
    const first = chunks.findIndex(chunk => {
      const isKept = length <= MAX_CHARACTERS;
      length -= chunk.text.length;
      return isKept;
    });
    this._isCut ||= first > 0;
    return first > 0 ? chunks.slice(first) : chunks;
  }

  private _chunks: readonly IChunk[] = [];
  private _isCut = false;
}

// What follows a carriage return takes the place of its line, as on a terminal: of a progress bar the last state is
// left. At the end of the text a carriage return waits for what follows.
function applyCarriageReturns(text: string): string {
  return text
    .split(/\r*\n/)
    .map(line => line.slice(line.replace(/\r+$/, '').lastIndexOf('\r') + 1))
    .join('\n');
}

/** The end of a log file, read part by part while it grows. */
export class LogTail {
  readonly text = new TextBuffer();

  /** Bytes of the file. */
  get size(): number {
    return this._size;
  }

  /**
   * Read on to the end of the file.
   *
   * @param readPart - Returns a part of the file; `from` below zero: so many bytes before its end.
   * @returns Whether there was anything new.
   */
  async read(readPart: (from: number) => Promise<ILogPart>): Promise<boolean> {
    let isNew = false;
    for (;;) {
      const from = this.next ?? -MAX_CHARACTERS;
      const part = await readPart(from);
      const missing = part.size - part.next;
      this._size = part.size;
      if (this.next !== null && (part.size < this.next || missing > MAX_CHARACTERS)) {
        // The file was begun anew, or has grown by more than is kept: its end is all that counts.
        this.text.clear(false);
        this.next = null;
        isNew = true;
        continue;
      }
      this.append(part, this.next === null && part.size > MAX_CHARACTERS);
      isNew ||= part.text !== '';
      if (missing <= 0 || part.text === '') {
        return isNew;
      }
    }
  }

  private append(part: ILogPart, startsInside: boolean): void {
    let { text } = part;
    if (startsInside) {
      this.text.clear(true);
      // the first line is not whole
      text = text.slice(text.indexOf('\n') + 1);
    }
    this.text.append(text);
    this.next = part.next;
  }

  // the first byte that was not read; null: nothing was
  private next: number | null = null;
  private _size = 0;
}

/** How characters are drawn. */
export interface ITextStyle {
  /** Empty: as the rest of the page. */
  readonly color: string;
  readonly isBold: boolean;
}

/** Characters that are drawn alike. */
export interface ITextRun {
  readonly text: string;
  readonly style: ITextStyle;
}

export const PLAIN_STYLE: ITextStyle = { color: '', isBold: false };

// What the server leaves in a log: `\x1b[1;31m`, and `\x1b[K`, which clears what a terminal has behind it.
// eslint-disable-next-line no-control-regex
const CODE = /\x1b\[(K|[\d;]*m)/;
// Black and white are those of the page: on one of its themes neither could be read.
const COLORS = ['', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', ''];

/** Return the runs of a text that begins with a style, and the style with which what follows begins. */
export function parseRuns(text: string, begin: ITextStyle): { runs: ITextRun[]; end: ITextStyle } {
  const runs: ITextRun[] = [];
  let style = begin;
  text.split(CODE).forEach((part, at) => {
    // texts, and codes between them
    if (at % 2 === 1) {
      style = part === 'K' ? style : applyCodes(style, part.slice(0, -1));
    } else if (part !== '') {
      runs.push({ text: part, style });
    }
  });
  return { runs, end: style };
}

/** Return a text without its colors. */
export function stripStyles(text: string): string {
  return text
    .split(CODE)
    .filter((_, at) => at % 2 === 0)
    .join('');
}

// Backgrounds and what hides a text are left out: all of a log can be read.
function applyCodes(style: ITextStyle, codes: string): ITextStyle {
  let { color, isBold } = style;
  const numbers = codes.split(';').map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const number = numbers[at] ?? 0;
    if (number === 0) {
      ({ color, isBold } = PLAIN_STYLE);
    } else if (number === 1 || number === 22) {
      isBold = number === 1;
    } else if (number === 38 || number === 48) {
      // one of 256 colors, or of all; its numbers are no codes
      at += numbers[at + 1] === 2 ? 4 : 2;
    } else if ((number >= 30 && number <= 39) || (number >= 90 && number <= 97)) {
      color = COLORS[number % 10] ?? '';
    }
  }
  return { color, isBold };
}
