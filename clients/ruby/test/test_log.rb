# frozen_string_literal: true

# The lines that a client logs: causes, consequences, and help; never a value of an attribute.
require "socket"
require_relative "support"

class TestLog < Support::Case
  def test_names_the_directory_that_the_group_may_not_enter
    played
    Dir.mkdir(inner = "#{@directory}/inner")
    File.rename(played.path, path = "#{inner}/s")
    File.chmod(0o755, @directory)
    File.chmod(0o700, inner)
    said = /\Atidegate: permission denied on #{path}: #{inner} has mode 0[07]00, without access for its group; see `tidegate doctor --as \S+`; requests are not limited\z/
    reported = in_child do
      Process::UID.change_privilege(65_534) if Process.uid.zero?
      File.chmod(0, inner) if File.owned?(inner)
      make_client(socket: path).hit("api")
      said.match?(@log.lines.join)
    end
    assert reported
  end

  def test_a_path_that_is_no_socket_is_named
    File.write("#{@directory}/file", "")
    ["#{@directory}/file", @directory].each { |path| make_client(socket: path).hit("api") }
    assert_equal(["file is no socket", "is no socket"], @log.lines.map { |line| line[/(file )?is no socket/] })
  end

  def test_the_admin_socket_is_recognized
    listener = UNIXServer.new("#{@directory}/s")
    thread = Thread.new do
      listener.accept.tap { |socket| socket.readpartial(1) }.write("HTTP/1.1 400 Bad Request\r\n\r\n")
    end
    client.hit("api")
    thread.join
    assert_includes @log.lines[0], "that is the admin socket"
  ensure
    listener&.close
  end

  def test_says_what_on_failure_does
    assert_equal 503, client.hit("api", on_failure: "refuse").status
    assert_match(/; requests with on_failure refuse get status 503, others are not limited\z/, @log.lines[0])
  end

  def test_one_request_without_the_daemon_is_singular
    client.hit("api")
    played
    until client.check; end
    client.hit("api")
    assert_equal ["tidegate: the daemon answers again; 1 request so far decided without it"], @log.lines[1..]
  end
end
