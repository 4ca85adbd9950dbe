/** An answer of the server that says why not. */
export class ApiError extends Error {
  /**
   * @param status - The HTTP status; 0: there was no answer.
   * @param message - Why not, in words.
   * @param log - The last lines of a log that tell more.
   */
  constructor(
    readonly status: number,
    message: string,
    readonly log: string | null = null
  ) {
    super(message);
    this.name = 'ApiError';
  }

  /** Whether the server has no extension of the workbench. */
  get isMissing(): boolean {
    return this.status === 404;
  }
}
