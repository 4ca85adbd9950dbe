import type { IPart } from './contract';
import { KEPT, TextEnd } from './text';

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
